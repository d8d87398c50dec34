"""copy by an executor, in parts and with a journal writes what one process writes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError, StorageError
from tests.bulk.executors import InlineExecutor

TASK_BYTES = 1 << 20
pytestmark = pytest.mark.usefixtures("small_tasks")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a run of three steps, which share one file."""
    with cordwood.CheckpointManager(tmp_path / "run", save=1) as manager:
        for step in range(3):
            tree = {"frozen": np.ones((512, 512)), "w": np.full(1 << 18, step)}
            manager.save(step, tree)
    return tmp_path / "run"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return a checkpoint of eight data files."""
    path = tmp_path / "5"
    for number in range(8):
        cordwood.save(path, {"x": np.full(1 << 18, number)}, prefix=f"tree{number}")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file() and not each.name.endswith(".lock")
    }


def journal_of(destination: Path) -> Path:
    return destination.parent / f".{destination.name}.cordwood-journal"


def test_the_copy_is_that_of_one_process(
    root: Path, tmp_path: Path, pool: ProcessPoolExecutor
) -> None:
    alone = cordwood.copy(root, tmp_path / "alone")
    report = cordwood.copy(root, tmp_path / "copy", executor=pool)
    assert contents(tmp_path / "copy") == contents(tmp_path / "alone") == contents(root)
    assert report[2:-2] == alone[2:-2]
    assert not journal_of(tmp_path / "copy").exists()
    again = cordwood.copy(root, tmp_path / "copy", executor=pool)
    assert (again.files, again.steps, len(again.steps_there)) == (0, (), 3)


def test_files_that_steps_share_are_copied_once(root: Path, tmp_path: Path) -> None:
    cordwood.copy(root, tmp_path / "copy", executor=InlineExecutor())
    shared = [
        {each.stat().st_ino for each in (folder / str(step)).glob("data*")}
        for folder in (root, tmp_path / "copy")
        for step in range(3)
    ]
    assert len(shared[0] & shared[1]) == len(shared[3] & shared[4]) == 1


def test_parts_copy_files_and_a_last_call_commits(step: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    reports = [cordwood.copy(step, copy, part=(i, 3)) for i in range(3)]
    assert [report.steps for report in reports] == [()] * 3
    assert sum(report.files for report in reports) == 8
    assert not (copy / "cordwood.json").exists()
    assert journal_of(copy).exists()
    report = cordwood.copy(step, copy)
    assert (report.files, report.copied_bytes) == (8, sum(r.copied_bytes for r in reports))
    assert contents(copy) == contents(step)
    assert not journal_of(copy).exists()


def test_the_last_call_copies_what_parts_have_not(step: Path, tmp_path: Path) -> None:
    cordwood.copy(step, tmp_path / "copy", part=(1, 4))
    executor = InlineExecutor()
    cordwood.copy(step, tmp_path / "copy", executor=executor)
    assert executor.calls == 6
    assert contents(tmp_path / "copy") == contents(step)


def test_an_interrupted_copy_goes_on(step: Path, tmp_path: Path) -> None:
    def interrupt(call: int) -> None:
        if call == 4:
            raise KeyboardInterrupt

    copy = tmp_path / "copy"
    with pytest.raises(KeyboardInterrupt):
        cordwood.copy(step, copy, executor=InlineExecutor(interrupt))
    assert len(list(copy.glob("data*"))) == 3
    executor = InlineExecutor()
    assert cordwood.copy(step, copy, executor=executor).files == 8
    assert executor.calls == 5
    assert contents(copy) == contents(step)


def test_a_file_that_was_removed_after_its_task_is_copied_again(step: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for i in range(2):
        cordwood.copy(step, copy, part=(i, 2))
    next(copy.glob("data*")).unlink()
    cordwood.copy(step, copy, part=None, executor=InlineExecutor())
    assert contents(copy) == contents(step)


def test_two_copies_at_once(step: Path, tmp_path: Path) -> None:
    errors: list[StorageError] = []

    def copy_too(call: int) -> None:
        if call == 1:
            with pytest.raises(StorageError, match="works on these tasks") as e:
                cordwood.copy(step, tmp_path / "copy", part=(0, 2))
            errors.append(e.value)

    cordwood.copy(step, tmp_path / "copy", executor=InlineExecutor(copy_too))
    assert len(errors) == 1


def test_damage_of_the_source_ends_the_copy(step: Path, tmp_path: Path) -> None:
    pack = min(step.glob("data*"))
    with pack.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    with pytest.raises(CorruptionError, match=pack.name):
        cordwood.copy(step, tmp_path / "copy", executor=InlineExecutor())
    assert not (tmp_path / "copy" / "cordwood.json").exists()


def test_a_step_that_is_deleted_meanwhile_is_left_out(root: Path, tmp_path: Path) -> None:
    def delete(call: int) -> None:
        if call == 1:
            with cordwood.CheckpointManager(root) as manager:
                manager.delete(1)

    report = cordwood.copy(root, tmp_path / "copy", executor=InlineExecutor(delete))
    assert report.steps == ("0", "2")


def test_copies_between_stores(step: Path) -> None:
    place = "memory://bulk/5"
    assert cordwood.copy(step, place, executor=InlineExecutor()).files == 8
    for i in range(2):
        cordwood.copy(place, f"{place}-copy", part=(i, 2))
    report = cordwood.copy(place, f"{place}-copy")
    assert (report.files, report.steps) == (0, ("",))
    assert cordwood.diff(step, f"{place}-copy", prefix="tree3").equal


def test_single_files_are_not_divided(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x.safetensors", {"x": 1})
    with pytest.raises(ValueError, match="is a single file, which one process copies"):
        cordwood.copy(tmp_path / "x.safetensors", tmp_path / "y.safetensors", part=(0, 2))
