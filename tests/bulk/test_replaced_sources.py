"""Bulk work on a checkpoint that is replaced never mixes two versions, in any format."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cordwood
from cordwood.bulk.run_bulk import BulkRun
from cordwood.errors import ProcessError, UnsupportedFormatError
from cordwood.formats.packs.write_in_tasks import DividedPacks
from cordwood.storage.file_stamps import file_stamps
from cordwood.storage.locations import parse_location
from tests.bulk.executors import InlineExecutor
from tests.storage.stores import StoredObjects, new_url

TASK_BYTES = 1 << 18
pytestmark = pytest.mark.usefixtures("small_tasks")

KINDS = ["packs", "zarr", "hub", "orbax", "npz", "npz with its time"]
PARTS: dict[str, Any] = {"max_shard_bytes": TASK_BYTES}


def write(path: Path, kind: str, value: float) -> None:
    """Write a checkpoint, or replace it by one of the same names, types and sizes."""
    tree: dict[str, Any] = {f"w{n}": np.full(1 << 16, value, np.float32) for n in range(4)}
    format, _, option = kind.partition(" ")
    if format == "npz":
        old = os.stat(path) if path.exists() else None
        np.savez(path, **tree)
        if option and old is not None:  # as `cp -p` and `rsync -t` do
            os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
        return
    if format == "hub":  # without the digests of cordwood
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text("{}")
        save_file(tree, path / "model.safetensors")
        return
    if format == "orbax":
        shutil.rmtree(path, ignore_errors=True)
    cordwood.save(path, tree, format=format)


class ExecutorWithEnd(InlineExecutor):
    """An executor that calls a function after the last of a number of calls."""

    def __init__(self, count: int, after: Callable[[], None]) -> None:
        super().__init__()
        self._count = count
        self._after = after

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future = super().submit(function, *arguments, **named)
        if self.calls == self._count:
            self._after()
        return future


class ExecutorElsewhere(InlineExecutor):
    """An executor whose workers have another working directory."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        with chdir("/"):
            return super().submit(function, *arguments, **named)


@pytest.mark.parametrize("kind", KINDS)
def test_convert_refuses_a_source_that_was_replaced_after_the_last_task(
    tmp_path: Path, kind: str
) -> None:
    source = tmp_path / ("x.npz" if kind.startswith("npz") else "x")
    write(source, kind, 1)
    executor = ExecutorWithEnd(4, lambda: write(source, kind, 2))
    with pytest.raises(ProcessError, match="was replaced while workers read it"):
        cordwood.convert(source, tmp_path / "y", executor=executor, **PARTS)
    assert executor.calls == 4
    assert not (tmp_path / "y" / "cordwood.json").exists()
    again = InlineExecutor()
    cordwood.convert(source, tmp_path / "y", executor=again, **PARTS)  # the remedy
    assert again.calls == 4
    assert cordwood.load(tmp_path / "y")["w0"][0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_parts_before_and_after_a_replacement_are_not_mixed(tmp_path: Path, kind: str) -> None:
    source = tmp_path / ("x.npz" if kind.startswith("npz") else "x")
    write(source, kind, 1)
    cordwood.save(tmp_path / "other", cordwood.load(source), format="zarr")
    options: dict[str, Any] = {"journal": tmp_path / "journal"}
    cordwood.convert(source, tmp_path / "y", part=(0, 2), **PARTS)
    cordwood.diff(tmp_path / "other", source, part=(0, 2), **options)
    write(source, kind, 2)
    cordwood.convert(source, tmp_path / "y", part=(1, 2), **PARTS)
    cordwood.diff(tmp_path / "other", source, part=(1, 2), **options)
    executor = InlineExecutor()
    cordwood.convert(source, tmp_path / "y", executor=executor, **PARTS)
    assert executor.calls == 2  # those of the part before the replacement
    assert {array[0] for array in cordwood.load(tmp_path / "y").values()} == {2}
    expected = cordwood.diff(tmp_path / "other", source)
    assert len(expected.leaves) == 4
    assert cordwood.diff(tmp_path / "other", source, **options) == expected


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_diff_refuses_a_side_that_was_replaced_after_the_last_task(
    tmp_path: Path, kind: str
) -> None:
    side = tmp_path / ("x.npz" if kind == "npz" else "x")
    write(side, kind, 1)
    cordwood.save(tmp_path / "other", {f"w{n}": np.zeros(1 << 16, np.float32) for n in range(4)})
    for sides in ((side, tmp_path / "other"), (tmp_path / "other", side)):
        executor = ExecutorWithEnd(4, lambda: write(side, kind, 2))
        with pytest.raises(ProcessError, match="was replaced while workers read it"):
            cordwood.diff(*sides, executor=executor)
        assert executor.calls == 4
        write(side, kind, 1)


def test_a_source_that_is_removed_meanwhile_was_replaced(tmp_path: Path) -> None:
    write(tmp_path / "x", "zarr", 1)
    executor = ExecutorWithEnd(4, lambda: shutil.rmtree(tmp_path / "x"))
    with pytest.raises(ProcessError, match="was replaced while workers read it"):
        cordwood.convert(tmp_path / "x", tmp_path / "y", executor=executor, **PARTS)


def test_python_values_alone_make_another_source(tmp_path: Path) -> None:
    tree = {f"w{n}": np.full(1 << 16, n, np.float32) for n in range(4)}
    cordwood.save(tmp_path / "x", {**tree, "step": 1})
    executor = ExecutorWithEnd(4, lambda: cordwood.save(tmp_path / "x", {**tree, "step": 2}))
    with pytest.raises(ProcessError, match="was replaced while workers read it"):
        cordwood.convert(tmp_path / "x", tmp_path / "y", executor=executor, **PARTS)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_relative_paths_are_read_by_workers_of_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "x.npz" if kind == "npz" else "x"
    write(Path(source), kind, 1)
    cordwood.convert(source, "y", executor=ExecutorElsewhere(), **PARTS)
    assert cordwood.diff(source, "y", executor=ExecutorElsewhere()).equal
    cordwood.convert(source, "z", part=(0, 2), **PARTS)
    cordwood.convert(tmp_path / source, tmp_path / "z", part=(1, 2), **PARTS)
    executor = InlineExecutor()
    cordwood.convert(source, "z", executor=executor, **PARTS)
    assert executor.calls == 0


def test_an_object_has_another_stamp_once_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_url("memory", monkeypatch) as url:
        objects = StoredObjects(url)
        objects["a/x"], objects["a/y"] = b"1", b"2"
        before = [file_stamps(parse_location(each)) for each in (f"{url}/a", f"{url}/a/x")]
        assert [sorted(each or ()) for each in before] == [["x", "y"], [""]]
        objects["a/x"] = b"3"
        after = [file_stamps(parse_location(each)) for each in (f"{url}/a", f"{url}/a/x")]
        for old, new in zip(before, after, strict=True):
            assert old is not None
            assert new is not None
            assert [name for name in old if old[name] != new[name]] == ["" if "" in old else "x"]
        with pytest.raises(FileNotFoundError):
            file_stamps(parse_location(f"{url}/b"))
    assert file_stamps(parse_location("https://host/x.npz")) is None


def test_stamps_are_of_the_targets_of_links(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"1")
    (tmp_path / "x" / "inner").mkdir(parents=True)
    (tmp_path / "x" / "inner" / "file").symlink_to(tmp_path / "blob")
    (tmp_path / "x" / "loop").symlink_to(tmp_path / "x")
    (tmp_path / "x" / ".hidden").touch()
    before = file_stamps(parse_location(tmp_path / "x"))
    assert before is not None
    assert [*before] == ["inner/file"]
    (tmp_path / "blob").write_bytes(b"2")
    assert file_stamps(parse_location(tmp_path / "x")) != before


def test_files_whose_replacement_nothing_tells_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x.npz", "npz", 1)
    module = "cordwood.loading.tree_reference.file_stamps"
    monkeypatch.setattr(module, lambda _: None)  # as of a web server
    with pytest.raises(UnsupportedFormatError, match=r"leave out executor=, part= and journal="):
        cordwood.convert(tmp_path / "x.npz", tmp_path / "y", part=(0, 2))
    cordwood.convert(tmp_path / "x.npz", tmp_path / "z")
    write(tmp_path / "p", "packs", 1)
    cordwood.convert(tmp_path / "p", tmp_path / "q", part=(0, 2))  # it has digests


@pytest.mark.parametrize("place", ["y", "memory://replaced-sources/y"])
def test_the_old_checkpoint_is_whole_until_parts_of_a_changed_source_are_committed(
    tmp_path: Path, place: str
) -> None:
    destination: Any = place if ":" in place else tmp_path / place
    options = {**PARTS, "journal": tmp_path / "journal"}
    write(tmp_path / "x", "orbax", 1)
    cordwood.convert(tmp_path / "x", destination, executor=InlineExecutor(), **options)
    for value in (2, 1):  # a new source, and one with the contents of the old one
        write(tmp_path / "x", "orbax", value)
        before = cordwood.load(destination)["w0"][0]
        cordwood.convert(tmp_path / "x", destination, part=(0, 2), overwrite=True, **options)
        assert cordwood.verify(destination).unverified_bytes == 0
        assert {array[0] for array in cordwood.load(destination).values()} == {before}
        cordwood.convert(tmp_path / "x", destination, overwrite=True, **options)
        assert {array[0] for array in cordwood.load(destination).values()} == {value}


@pytest.mark.parametrize("step", ["note_commit", "commit", "forget"])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_call_after_a_kill_around_the_commit_writes_the_source_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_before: bool
) -> None:
    owner = DividedPacks if step == "commit" else BulkRun
    real = getattr(owner, step)

    def die(*arguments: Any) -> None:
        if not is_before:
            real(*arguments)
        raise KeyboardInterrupt

    write(tmp_path / "x", "orbax", 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, die)
        with pytest.raises(KeyboardInterrupt):
            cordwood.convert(tmp_path / "x", tmp_path / "y", executor=InlineExecutor(), **PARTS)
    write(tmp_path / "x", "orbax", 2)
    cordwood.convert(tmp_path / "x", tmp_path / "y", overwrite=True, **PARTS)  # without executor
    assert {array[0] for array in cordwood.load(tmp_path / "y").values()} == {2}
    assert cordwood.verify(tmp_path / "y").unverified_bytes == 0
    assert not (tmp_path / ".y.cordwood-journal").exists()


def test_results_from_before_a_commit_do_not_count_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x", "zarr", 1)
    with monkeypatch.context() as patch:
        patch.setattr(BulkRun, "forget", lambda _: None)  # as if it was killed
        cordwood.convert(tmp_path / "x", tmp_path / "y", executor=InlineExecutor(), **PARTS)
    assert (tmp_path / ".y.cordwood-journal").exists()
    names = {each.name for each in (tmp_path / "y").glob("data-*")}
    executor = InlineExecutor()
    cordwood.convert(tmp_path / "x", tmp_path / "y", executor=executor, overwrite=True, **PARTS)
    assert executor.calls == 4
    assert names.isdisjoint(each.name for each in (tmp_path / "y").glob("data-*"))


def test_a_set_of_patterns_is_the_same_in_all_processes(tmp_path: Path) -> None:
    write(tmp_path / "x", "packs", 1)
    code = """if True:
        import sys, cordwood
        from cordwood.bulk.task_size import task_size
        with task_size(1 << 18):
            cordwood.convert(sys.argv[1], sys.argv[2], part=(0, 1), max_shard_bytes=1 << 18,
                             select={"w0", "w1", "w2", "w3", "!w1"})
    """
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "x"), str(tmp_path / "y")]
    subprocess.run(command, env=environment, check=True)
    executor = InlineExecutor()
    select: Any = {"w0", "w1", "w2", "w3", "!w1"}
    cordwood.convert(tmp_path / "x", tmp_path / "y", executor=executor, select=select, **PARTS)
    assert executor.calls == 0
    assert [*cordwood.load(tmp_path / "y")] == ["w0", "w2", "w3"]


@pytest.mark.parametrize("kind", ["orbax", "npz with its time"])
def test_verify_reads_a_checkpoint_that_was_replaced_though_the_journal_lists_it(
    tmp_path: Path, kind: str
) -> None:
    source = tmp_path / ("x.npz" if kind.startswith("npz") else "x")
    options: dict[str, Any] = {"journal": tmp_path / "journal"}
    write(source, kind, 1)
    cordwood.verify(source, part=(0, 1), **options)
    write(source, kind, 2)
    executor = InlineExecutor()
    cordwood.verify(source, executor=executor, **options)
    assert executor.calls == 1
