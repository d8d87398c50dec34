"""Removals that were killed at any moment: `gc`, the next `rm` and a manager complete them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import NotACheckpointError
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.faults.systems import CountingSystem
from tests.manager.test_foreign_steps import save_with_eformer

TREE = {"w": np.arange(4.0), "b": {"c": np.ones(3)}}


def save_packs(path: Path) -> None:
    cordwood.save(path, TREE)


def save_zarr(path: Path) -> None:
    cordwood.save(path, TREE, format="zarr")


def save_file(path: Path) -> None:
    cordwood.save(path, TREE, format="msgpack")


def save_run(path: Path) -> None:
    save_with_eformer(path, [1, 2])


WRITERS = {"packs": save_packs, "zarr": save_zarr, "a file": save_file, "a run": save_run}


class Killed(BaseException):
    """The end of a process."""


_CHANGES = {"pwrite", "fsync", "replace", "rename_to_free_name", "unlink", "rmdir"}


class KilledAt(CountingSystem):
    """The system calls up to that number of those that change something; the next one kills."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._last = number

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if len([each for each in self.made if each in _CHANGES]) > self._last:
            raise Killed
        return super()._make(number, name, call, args)


def kill_removal(path: Path, number: int) -> bool:
    """Remove a checkpoint until a system call of that number; return True if it was killed."""
    plan = plan_removal(path)
    with syscalls.override(KilledAt(number)):
        try:
            remove(plan)
        except Killed:
            return True
    return False


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.name.endswith("-lock")
    }


def remove_again(path: Path) -> None:
    try:
        remove(plan_removal(path))
    except FileNotFoundError:
        assert not path.exists()


def remove_neighbour(path: Path) -> None:
    cordwood.save(path.parent / "neighbour.msgpack", TREE)
    remove(plan_removal(path.parent / "neighbour.msgpack"))


def collect_parent(path: Path) -> None:
    cordwood.gc(path.parent)


def collect_it(path: Path) -> None:
    try:
        cordwood.gc(path)
    except FileNotFoundError:
        assert path.is_file() or not path.exists()


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("finish", [remove_again, remove_neighbour, collect_parent, collect_it])
def test_all_or_nothing_is_left(
    tmp_path: Path, write: Callable[[Path], None], finish: Callable[[Path], Any]
) -> None:
    for number in range(40):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "other").write_text("mine")
        path = root / "a"
        write(path)
        before = contents(root)
        killed = kill_removal(path, number)
        finish(path)
        after = contents(root)
        assert after in ({"other": b"mine"}, before), (number, sorted(after))
        if finish is remove_again:
            assert not path.exists()
        elif path.exists():
            assert number <= 4
            if write is not save_run:
                assert_trees_equal(cordwood.load(path), TREE)
        if not killed:
            break
    assert not killed
    assert number > 3


def killed_while_it_removes(path: Path) -> Path:
    """Kill the removal of a checkpoint after its first file; return where the others are."""
    assert kill_removal(path, 5)
    (hidden,) = path.parent.glob(f".{path.name}.cordwood-*.removed")
    assert not path.exists()
    return hidden


@pytest.mark.parametrize("finish", [remove_again, collect_parent])
def test_what_has_come_since_stays(tmp_path: Path, finish: Callable[[Path], Any]) -> None:
    path = tmp_path / "a"
    save_zarr(path)
    hidden = killed_while_it_removes(path)
    (hidden / "b" / "notes").write_text("mine")
    finish(path)
    assert contents(hidden) == {"b": b"", "b/notes": b"mine"}
    (hidden / "b" / "notes").unlink()
    finish(path)
    assert contents(tmp_path) == {}


def test_a_name_that_is_taken_again_is_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.msgpack"
    cordwood.save(path, TREE)
    assert kill_removal(path, 1)
    cordwood.save(path, {"w": 1})
    assert cordwood.gc(tmp_path) == []
    (kept,) = tmp_path.glob(".a.msgpack.cordwood-*.kept")
    assert str(kept) in caplog.text
    assert cordwood.load(path) == {"w": 1}
    kept.rename(tmp_path / "b.msgpack")
    assert_trees_equal(cordwood.load(tmp_path / "b.msgpack"), TREE)


def test_a_run_is_removed_with_what_a_killed_removal_of_a_step_has_left(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    hidden = killed_while_it_removes(tmp_path / "run" / "run-2")
    (hidden / "notes").write_text("mine")
    with pytest.raises(NotACheckpointError, match="which is no part of it"):
        plan_removal(tmp_path / "run")
    (hidden / "notes").unlink()
    remove(plan_removal(tmp_path / "run"))
    assert contents(tmp_path) == {}


def test_the_next_save_of_a_manager_completes_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, background=False) as manager:
        manager.save(1, TREE)
        manager.save(2, TREE)
        killed_while_it_removes(tmp_path / "1")
        manager.save(3, TREE)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2", "3"]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_zarr(path)
    hidden = killed_while_it_removes(path)
    before = contents(tmp_path)
    assert cordwood.gc(tmp_path, dry_run=True) == [str(hidden)]
    plan = plan_removal(path)
    assert plan.description == "what a killed removal has left"
    assert 0 < plan.size_bytes <= sum(map(len, before.values()))
    assert contents(tmp_path) == before
    assert cordwood.gc(tmp_path) == [str(hidden)]


@pytest.mark.parametrize(
    "text",
    [
        '{"files":["../mine","/etc/hostname","c/../../mine",".."],"folders":["..","../.."]}',
        "[]",
        "{",
    ],
)
def test_no_list_leads_to_anything_outside(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").write_text("mine")
    hidden = tmp_path / f".a.cordwood-{'0' * 16}.removed"
    hidden.mkdir()
    (hidden / "c").mkdir()
    hidden.with_suffix(".list").write_text(text)
    cordwood.gc(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (hidden / "c").exists() or (tmp_path / "a" / "c").exists()


def test_a_full_disk_does_not_keep_it_from_removing(tmp_path: Path) -> None:
    class Full(syscalls.SystemCalls):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_zarr(tmp_path / "a")
    plan = plan_removal(tmp_path / "a")
    with syscalls.override(Full()):
        remove(plan)
    assert contents(tmp_path) == {}
