"""The choice between the page cache and direct I/O, save by save."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.io import page_cache
from cordwood.io.page_cache import fits_page_cache
from cordwood.storage import syscalls

TREE = {"w": np.arange(3 << 20, dtype=np.float32)}  # 12 MiB: large enough for direct I/O


class OpenCounter(syscalls.SystemCalls):
    """The real system calls; the files that are opened with O_DIRECT are listed."""

    def __init__(self) -> None:
        self.direct: list[str] = []

        def open_file(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_DIRECT:
                self.direct.append(path)
            return os.open(path, flags, mode)

        self.open = open_file  # type: ignore[assignment]


@pytest.fixture
def calls() -> Iterator[OpenCounter]:
    counter = OpenCounter()
    with syscalls.override(counter):
        yield counter


def save_step(path: Path, tree: Any, **options: Any) -> None:
    with cordwood.CheckpointManager(path.parent / "run", **options) as manager:
        manager.save(1, tree)


def save_in_background(path: Path, tree: Any, **options: Any) -> None:
    cordwood.save_async(path, tree, **options).wait()


def save_zarr(path: Path, tree: Any, **options: Any) -> None:
    cordwood.save(path, tree, format="zarr", **options)


def convert(path: Path, tree: Any) -> None:
    source = path.parent / "source.safetensors"
    cordwood.save(source, tree)
    cordwood.convert(source, path)


def combine(path: Path, tree: Any) -> None:
    source = path.parent / "source.safetensors"
    cordwood.save(source, tree)
    cordwood.combine(path, {source: 0.5})


Save = Callable[..., None]
NAMES = ["tree.safetensors", "tree.msgpack", "tree"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("save", [cordwood.save, convert])
def test_what_the_caller_waits_for_stays_in_the_page_cache(
    tmp_path: Path, calls: OpenCounter, save: Save, name: str
) -> None:
    save(tmp_path / name, TREE)
    assert calls.direct == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("save", [save_in_background, save_step, combine])
def test_what_is_saved_in_the_background_or_computed_is_written_past_it(
    tmp_path: Path, calls: OpenCounter, save: Save, name: str
) -> None:
    save(tmp_path / name, TREE)
    assert calls.direct


@pytest.mark.parametrize("save", [cordwood.save, save_zarr, save_in_background, save_step])
def test_the_caller_may_choose(tmp_path: Path, calls: OpenCounter, save: Save) -> None:
    save(tmp_path / "one" / "cached", TREE, page_cache=True)
    assert calls.direct == []
    save(tmp_path / "two" / "direct", TREE, page_cache=False)
    assert calls.direct


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_that_is_large_beside_the_available_memory_is_written_past_it(
    tmp_path: Path, calls: OpenCounter, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(page_cache, "available_memory_bytes", lambda: 64 << 20)
    cordwood.save(tmp_path / name, TREE)
    assert calls.direct
    loaded = cordwood.load(tmp_path / name)
    assert np.array_equal(loaded["w"], TREE["w"])


def test_all_files_of_a_save_count_together(
    tmp_path: Path, calls: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {str(number): TREE["w"] for number in range(4)}
    monkeypatch.setattr(page_cache, "available_memory_bytes", lambda: 8 * 20 << 20)
    cordwood.save(tmp_path / "many", tree, max_shard_bytes=12 << 20)
    assert len(calls.direct) == 4
    cordwood.save(tmp_path / "one", TREE, max_shard_bytes=12 << 20)
    assert len(calls.direct) == 4


def test_small_is_an_eighth_of_the_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "available_memory_bytes", lambda: 800)
    assert fits_page_cache(100)
    assert not fits_page_cache(101)


@pytest.mark.parametrize("save", [cordwood.save, save_in_background, save_step])
def test_other_values_are_refused(tmp_path: Path, save: Save) -> None:
    with pytest.raises(TypeError, match="page_cache='no': expected True or False"):
        save(tmp_path / "x", TREE, page_cache="no")
    assert os.listdir(tmp_path) == []
