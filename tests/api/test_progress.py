"""Long calls tell one callback how far they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.io import progress
from cordwood.results import Progress

TREE = {f"w{i}": np.full(1 << 19, i, np.float32) for i in range(8)}  # 16 MiB


@pytest.fixture(autouse=True)
def _tell_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_SECONDS", 0.0)


def calls(path: Path, other: Path) -> dict[str, Callable[[Any], object]]:
    return {
        "save": lambda report: cordwood.save(path, TREE, progress=report),
        "load": lambda report: cordwood.load(path, progress=report),
        "verify": lambda report: cordwood.verify(path, progress=report),
        "convert": lambda report: cordwood.convert(path, other, progress=report),
    }


@pytest.mark.parametrize("kind", ["a.safetensors", "a.msgpack", "packs", "zarr"])
@pytest.mark.parametrize("verb", ["save", "load", "verify", "convert"])
def test_the_counts_of_progress(tmp_path: Path, kind: str, verb: str) -> None:
    path = tmp_path / kind
    options: Any = {"format": kind} if "." not in kind else {}
    cordwood.save(path, TREE, **options)
    messages: list[Progress] = []
    calls(path, tmp_path / "b.safetensors")[verb](messages.append)
    done = [each.done_bytes for each in messages]
    assert done[0] == 0
    assert done == sorted(done)
    assert messages[-1].done_bytes == messages[-1].total_bytes
    if (verb, kind) != ("verify", "a.msgpack"):  # which has no digests
        assert len(messages) > 3
        assert done[-1] == pytest.approx(16 << 20, rel=0.01)
    if verb == "convert":
        assert any(each.doing.startswith("w") for each in messages)


def test_an_error_of_the_callback_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, TREE)

    def stop(progress: Progress) -> None:
        if progress.done_bytes:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        cordwood.convert(path, tmp_path / "b", progress=stop)
    assert not (tmp_path / "b").exists()


def test_all_trees_of_a_comparison_are_one_progress(tmp_path: Path) -> None:
    for name, offset in (("a", 0), ("b", 1)):
        for number, prefix in enumerate((None, "ema", "same")):
            tree = {"w": np.full(1 << 18, number + offset * (prefix != "same"), np.float32)}
            cordwood.save(tmp_path / name, tree, prefix=prefix)
    messages: list[Progress] = []
    diff = cordwood.diff(tmp_path / "a", tmp_path / "b", progress=messages.append)
    assert len(diff.leaves) == 2
    done = [each.done_bytes for each in messages]
    assert done[0] == 0
    assert done == sorted(done)
    assert done[-1] == messages[-1].total_bytes == 4 << 20
    assert all(each.done_bytes < each.total_bytes for each in messages[:2])
    assert {each.doing for each in messages} == {"", "ema", "same"}
