"""Restores of steps whose files lie in the roots of several processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cordwood import CheckpointManager, Mirror
from cordwood.errors import CorruptionError, ProcessError, StepError
from tests.manager.unshared.fake_run import (
    Run,
    every_device_is_a_process,
    in_the_foreground,
    packs,
)

__all__ = ["every_device_is_a_process", "in_the_foreground"]


def replicate(run: Run, process: int, step: int, to: int) -> None:
    """Copy the packs of a process to another root, as replicas are."""
    for pack in packs(run.root(process) / str(step)):
        (run.root(to) / str(step) / pack.name).write_bytes(pack.read_bytes())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_lost_root_is_read_from_the_replicas_by_any_number_of_processes(
    tmp_path: Path, count: int
) -> None:
    run = Run(tmp_path)
    run.save(4, [1])
    for process in (1, 2, 3):
        replicate(run, process, 1, 0)
    shutil.rmtree(run.root(3))
    assert run.restore(count) == 1


def test_the_newest_complete_step_is_restored_and_the_error_names_what_is_missing(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(3, [1, 2])
    replicate(run, 1, 1, 2)
    shutil.rmtree(run.root(1))
    with pytest.warns(RuntimeWarning, match=r"step 2 is passed over: incomplete: .* are nowhere"):
        assert run.restore(3) == 1
    shutil.rmtree(run.root(2))
    with pytest.warns(RuntimeWarning), pytest.raises(CorruptionError) as caught:
        run.restore(3)
    assert "2: incomplete: " in str(caught.value)
    assert "1: incomplete: " in str(caught.value)
    name = "-1-0.safetensors"
    assert name in str(caught.value)


@pytest.mark.parametrize("lost", [(1,), (0, 1), (0, 1, 2)])
def test_what_no_root_holds_comes_from_the_mirror(tmp_path: Path, lost: tuple[int, ...]) -> None:
    run = Run(tmp_path)
    mirror = Mirror(tmp_path / "mirror")
    run.save(3, [1, 2], mirror=mirror)
    assert CheckpointManager(tmp_path / "mirror").steps() == [1, 2]
    for process in lost:
        shutil.rmtree(run.root(process))
    assert run.restore(3, mirror=mirror) == 2


def test_roots_that_are_one_directory_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    outcomes = run.start(3, lambda manager, _: manager.restore(), roots=[tmp_path / "one"] * 3)
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError)
        assert "pass shared=True" in str(outcome.error)
    assert not list((tmp_path / "one").iterdir())


def test_the_steps_are_unknown_until_the_processes_have_met(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for outcome in run.start(2, lambda manager, _: manager.latest()):
        assert isinstance(outcome.error, StepError)
        assert "call restore or save first" in str(outcome.error)


def test_one_process_works_as_in_a_shared_root(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, shared=False, keep=2) as manager:
        assert manager.steps() == []
        for step in range(4):
            manager.save(step, {"w": step})
    with CheckpointManager(tmp_path, shared=False) as manager:
        assert manager.steps() == [2, 3]
        assert manager.restore(required=True).tree == {"w": 3}
    assert CheckpointManager(tmp_path).steps() == [2, 3]
