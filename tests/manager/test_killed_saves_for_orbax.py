"""Saves with `orbax=` that are killed: what Orbax's managers take for their latest step then."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint.options import AtomicityMode, AtomicityOptions

import cordwood
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.manager.dying import Dying, Killed

IN_PLACE = AtomicityOptions(mode=AtomicityMode.COMMIT_FILE)


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.full(3, step, np.float32), "frozen": np.arange(4.0)}


def save_step(root: Path, step: int, **options: Any) -> None:
    with cordwood.CheckpointManager(root, background=False, orbax=True, **options) as manager:
        manager.save(step, tree_of(step), metrics={"loss": 1.0})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save_step(tmp_path / "run", 11)
    return tmp_path / "run"


def steps_for_orbax(root: Path, atomicity: AtomicityOptions | None = None) -> list[int]:
    """Return the steps as every manager of Orbax finds them."""
    names = ocp.path.step.standard_name_format(atomicity_options=atomicity)
    return sorted(step.step for step in names.find_all(root))


def restore_by_orbax(root: Path, atomicity: AtomicityOptions | None = None) -> tuple[int, Any]:
    options = ocp.CheckpointManagerOptions(atomicity_options=atomicity)
    with ocp.CheckpointManager(root, options=options) as manager:
        step = manager.latest_step()
        assert step is not None
        return step, manager.restore(None)


def killed_at(call: int, root: Path, copy: Path, **options: Any) -> bool:
    """Save step 12 in a copy of a root, and die at a call; return False if it was not reached."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, symlinks=True)
    dying = Dying(call)
    with syscalls.override(dying), suppress(Killed):
        save_step(copy, 12, **options)
    return dying.died


def test_at_every_call_orbax_has_the_step_before_or_the_whole_new_one(root: Path) -> None:
    copy = root.with_name("copy")
    seen = []
    for call in range(1, 500):
        died = killed_at(call, root, copy)
        steps = steps_for_orbax(copy)
        assert steps_for_orbax(copy, IN_PLACE) == steps
        seen.append(steps)
        if steps == [11, 12]:
            assert cordwood.verify(copy / "12").stale == ()
            with ocp.StandardCheckpointer() as checkpointer:
                restored = checkpointer.restore(copy / "12" / "default")
            assert_trees_equal(restored, dict(sorted(tree_of(12).items())))
        else:
            assert steps == [11]
            assert cordwood.StepReader(copy).steps() == [11]
        if not died:
            break
    assert len(seen) > 30
    assert seen.index([11, 12]) == seen.count([11])  # from some call on it is there


@pytest.mark.parametrize("atomicity", [None, IN_PLACE], ids=["renames", "commit files"])
def test_managers_of_orbax_restore_what_is_whole(
    root: Path, atomicity: AtomicityOptions | None
) -> None:
    copy = root.with_name("copy")
    assert killed_at(12, root, copy)
    step, restored = restore_by_orbax(copy, atomicity)
    assert (step, restored["w"].tolist()) == (11, [11, 11, 11])
    save_step(copy, 12)
    step, restored = restore_by_orbax(copy, atomicity)
    assert (step, restored["w"].tolist()) == (12, [12, 12, 12])


def test_an_orbax_that_deletes_what_was_not_committed_leaves_the_steps(root: Path) -> None:
    options = ocp.CheckpointManagerOptions(atomicity_options=IN_PLACE, cleanup_tmp_directories=True)
    with ocp.CheckpointManager(root, options=options) as manager:
        manager.save(12, args=ocp.args.StandardSave(tree_of(12)))
    assert cordwood.StepReader(root).steps() == [11, 12]
    assert cordwood.verify(root / "11").stale == ()


def test_what_a_killed_save_leaves_is_removed_by_the_next_save_or_gc(root: Path) -> None:
    copy = root.with_name("copy")
    for step in (12, 13):
        for call in (3, 12, 30):
            assert killed_at(call, root, copy)
            names = {*os.listdir(copy)} - {"11"}
            assert names
            assert all(name.startswith(".") for name in names)
            save_step(copy, step)
            assert sorted(os.listdir(copy)) == ["11", str(step)]
    for call in (3, 12, 30):
        assert killed_at(call, root, copy)
        stage = next(str(path) for path in copy.iterdir() if path.name.endswith(".stage"))
        assert stage in cordwood.gc(copy, dry_run=True)
        assert stage in cordwood.gc(copy)
        assert cordwood.gc(copy) == []
        assert {*os.listdir(copy)} <= {"11", ".steps.cordwood-lock"}


def test_a_step_that_is_being_written_is_no_leftover(root: Path) -> None:
    with cordwood.CheckpointManager(root, orbax=True) as manager:
        seen: list[list[str]] = []

        def progress(_: object) -> None:
            if not seen:
                seen.append(sorted(os.listdir(root)))
                assert cordwood.gc(root) == []
                assert sorted(os.listdir(root)) == seen[0]
                assert steps_for_orbax(root) == [11]
                save_step_beside(root)

        cordwood.save(root / "12", tree_of(12), orbax=True, progress=progress)
        assert len(seen) == 1
        del manager
    assert steps_for_orbax(root) == [11, 12, 13]


def save_step_beside(root: Path) -> None:
    """Save a step by another manager, which removes leftovers."""
    with cordwood.CheckpointManager(root, background=False) as other:
        other.save(13, tree_of(13))


def test_a_directory_that_came_meanwhile_gets_the_checkpoint(tmp_path: Path) -> None:
    for orbax in (True, False):
        path = tmp_path / f"{orbax}" / "d"
        begun: list[bool] = []

        def progress(_: object, path: Path = path, orbax: bool = orbax, begun: Any = begun) -> None:
            if not begun:
                begun.append(True)
                cordwood.save(path, tree_of(1), prefix="beside")
                (path / "notes").write_text("mine")
                if orbax:
                    cordwood.save(path, tree_of(2), orbax=True)

        cordwood.save(path, tree_of(3), orbax=True, progress=progress)
        assert_trees_equal(cordwood.load(path, prefix="beside", like=tree_of(1)), tree_of(1))
        assert_trees_equal(cordwood.load(path, like=tree_of(3)), tree_of(3))
        assert (path / "notes").read_text() == "mine"
        assert cordwood.verify(path).stale == ()
        assert os.listdir(path.parent) == ["d"]
        assert cordwood.gc(path) == []
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path)
        assert_trees_equal(restored, dict(sorted(tree_of(3).items())))


def test_a_directory_without_an_index_is_filled_in_place(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir(0o750)
    cordwood.save(path, tree_of(1), orbax=True)
    assert path.stat().st_mode & 0o777 == 0o750
    assert cordwood.verify(path).stale == ()


def test_a_failed_save_leaves_nothing(root: Path) -> None:
    class Full(syscalls.SystemCalls):
        def __init__(self, fails_at: int) -> None:
            self._calls = fails_at

        def fsync(self, fd: int) -> None:
            self._calls -= 1
            if self._calls == 0:
                raise OSError(28, "No space left on device")
            super().fsync(fd)

    before = sorted(os.walk(root))
    failures = 0
    for number in range(1, 40):
        text = ""
        try:
            with syscalls.override(Full(number)):
                cordwood.save(root / "new" / "12", tree_of(12), orbax=True)
        except OSError as e:
            text = str(e)
        if "untouched" in text:
            failures += 1
            assert sorted(os.walk(root)) == before
        else:  # if the last flush failed, the step is in place all the same
            assert not text or "is in place and whole" in text
            assert cordwood.verify(root / "new" / "12").stale == ()
        shutil.rmtree(root / "new", ignore_errors=True)
    assert failures > 8


def test_at_every_call_of_a_copy_orbax_has_no_step_or_the_whole_one(root: Path) -> None:
    copy = root.with_name("copy")
    total = cordwood.copy(root, copy).copied_bytes
    copied = []
    for call in range(1, 500):
        shutil.rmtree(copy)
        dying = Dying(call)
        with syscalls.override(dying), suppress(Killed):
            cordwood.copy(root, copy)
        assert steps_for_orbax(copy, IN_PLACE) == steps_for_orbax(copy)
        if steps_for_orbax(copy):
            assert cordwood.verify(copy / "11").stale == ()
        copied.append(cordwood.copy(root, copy).copied_bytes)
        assert {*os.listdir(copy)} <= {"11", ".steps.cordwood-lock"}
        assert cordwood.verify(copy / "11").stale == ()
        if not dying.died:
            break
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(copy / "11" / "default")
    assert_trees_equal(restored, dict(sorted(tree_of(11).items())))
    assert len(copied) > 20
    assert {copied[0], *copied} == {total, 0}
    assert copied == sorted(copied, reverse=True)  # a file that was whole is not copied again
    assert copied.count(0) > 10


def kill_copy(root: Path, copy: Path) -> Path:
    """Copy a run of one step, and die once its data are copied; return the path of their file."""
    for call in range(1, 100):
        with syscalls.override(Dying(call)), suppress(Killed):
            cordwood.copy(root, copy)
        data = list(copy.glob(".11.*.stage/data-*.safetensors"))
        if data:
            return data[0]
    raise AssertionError("no call left data in a staging directory")


def test_a_mirror_goes_on_from_the_files_of_a_killed_copy(root: Path) -> None:
    mirror = root.with_name("mirror")
    data = kill_copy(root, mirror)
    inode = data.stat().st_ino
    with cordwood.CheckpointManager(root, mirror=cordwood.Mirror(mirror), orbax=True) as manager:
        manager.restore()
        manager.wait()
        assert manager.mirrored == 11
    assert os.listdir(mirror) == ["11"]
    assert (mirror / "11" / data.name).stat().st_ino == inode


def test_gc_and_the_next_step_in_a_mirror_remove_a_killed_copy(root: Path) -> None:
    mirror = root.with_name("mirror")
    stage = str(kill_copy(root, mirror).parent)
    assert cordwood.gc(mirror) == [stage]
    stage = str(kill_copy(root, mirror).parent)
    with cordwood.CheckpointManager(root, mirror=cordwood.Mirror(mirror)) as manager:
        manager.save(12, tree_of(12))
        manager.wait()
        assert manager.mirrored == 12
    assert not os.path.exists(stage)
    assert steps_for_orbax(mirror) == [12]


def test_a_checkpoint_that_comes_while_it_is_copied_stays(root: Path, tmp_path: Path) -> None:
    begun: list[bool] = []

    def progress(_: object) -> None:
        if not begun:
            begun.append(True)
            cordwood.save(tmp_path / "to" / "11", tree_of(1), orbax=True)

    with pytest.raises(FileExistsError, match="there is a checkpoint already, and another one"):
        cordwood.copy(root / "11", tmp_path / "to" / "11", progress=progress)
    assert_trees_equal(cordwood.load(tmp_path / "to" / "11", like=tree_of(1)), tree_of(1))
    assert cordwood.gc(tmp_path / "to" / "11") == []
    assert os.listdir(tmp_path / "to") == ["11"]


class SeenFlushes(syscalls.SystemCalls):
    def __init__(self) -> None:
        self.paths: set[str] = set()

    def fsync(self, fd: int) -> None:
        self.paths.add(os.readlink(f"/proc/self/fd/{fd}"))
        super().fsync(fd)


def test_a_second_call_flushes_the_name_that_a_killed_one_gave(tmp_path: Path) -> None:
    def save() -> None:
        cordwood.save(tmp_path / "one" / "d", tree_of(1), orbax=True)

    def copy() -> None:
        cordwood.copy(tmp_path / "one" / "d", tmp_path / "other" / "d")

    for call, parent in ((save, "one"), (copy, "other")):
        call()
        seen = SeenFlushes()
        with syscalls.override(seen):
            call()
        assert str(tmp_path / parent) in seen.paths
