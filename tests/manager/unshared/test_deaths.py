"""A process dies at any of its calls: no step that was reported as saved is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cordwood import CheckpointManager, Mirror
from cordwood.errors import ProcessError
from cordwood.processes import rendezvous
from cordwood.processes.key_value_store import current_processes
from tests.deaths import SILENCE_SECONDS
from tests.manager.unshared.fake_run import (
    Run,
    every_device_is_a_process,
    in_the_foreground,
    like,
    tree_of,
)
from tests.processes.fake_processes import Died, FakeProcesses
from tests.threads import in_threads

__all__ = ["every_device_is_a_process", "in_the_foreground"]

COUNT = 3


def restore_and_save(manager: CheckpointManager, _: int) -> bool:
    restored = manager.restore(like=like(COUNT))
    assert restored is not None
    assert restored.step == 1
    manager.save(2, tree_of(2, COUNT))
    manager.wait()
    return True


@pytest.mark.filterwarnings("ignore:.*step 2 is passed over:RuntimeWarning")
@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_during_a_save_loses_no_step_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", SILENCE_SECONDS)
    deaths: list[int | None] = []

    def attempt(number: int | None) -> int:
        run = Run(tmp_path / str(number))
        run.save(COUNT, [1])
        dies_at = {} if number is None else {victim: number}
        options: dict[str, Any] = {}
        if number is not None:
            options = {"timeout_seconds": 2 * SILENCE_SECONDS}
        outcomes = run.start(COUNT, restore_and_save, dies_at=dies_at, keep=1, **options)
        if isinstance(outcomes[victim].error, Died):
            deaths.append(number)
        else:  # other loads of the machine change the number of calls
            assert outcomes[victim].value
        calls = run.calls[victim]
        step = run.restore(COUNT)
        assert step in (1, 2)
        if any(outcome.value for outcome in outcomes):
            assert step == 2
        assert run.save(COUNT, [step + 1], keep=1) == [[step + 1]] * COUNT
        names = {path.name for process in range(COUNT) for path in run.root(process).iterdir()}
        assert names == {str(step + 1)}
        return calls

    calls = attempt(None)
    points = [calls - back for back in (2, 4, 6, 8, 10, 12)]  # in the rounds of the save

    def work(number: int) -> None:
        attempt(points[number])

    in_threads(work, len(points))
    assert deaths


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_death_while_the_processes_meet_is_the_error_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", SILENCE_SECONDS)
    run = Run(tmp_path / "run")
    mirror = Mirror(tmp_path / "mirror", wait_seconds=1.0)  # also for those that died
    run.save(COUNT, [1])

    def restore(dies_at: int | None) -> int:
        """Restore in a run of which a process dies at a call; return how many it has made."""
        each = Run(tmp_path / f"run-{dies_at}")
        shutil.copytree(run.path, each.path)
        outcomes = each.start(
            COUNT,
            lambda manager, _: manager.restore(like=like(COUNT)) is not None,
            dies_at={} if dies_at is None else {0: dies_at},
            mirror=mirror,
        )
        for index, outcome in enumerate(outcomes):
            expected = Died if index == 0 and dies_at is not None else ProcessError
            assert outcome.error is None or isinstance(outcome.error, expected)
        return each.calls[0]

    calls = restore(None)

    def work(number: int) -> None:
        restore(1 + number * calls // 8)

    in_threads(work, 8)
    assert run.restore(COUNT) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_death_during_a_deletion_or_new_metrics_loses_no_other_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", SILENCE_SECONDS)
    saved = Run(tmp_path / "saved")
    saved.save(COUNT, [1, 2])
    points = [(victim, calls) for victim in (0, 2) for calls in (0, 3, 6, 10)]
    deaths: list[tuple[int, int]] = []

    def go_on(manager: CheckpointManager, _: int) -> list[int]:
        restored = manager.restore(like=like(COUNT), required=True)
        assert restored.step == 2
        assert restored.metrics.get("accuracy", 0.5) == 0.5
        manager.add_metrics(2, {"accuracy": 0.5})
        assert manager.best("accuracy") == 2
        manager.save(3, tree_of(3, COUNT))
        manager.wait()
        return manager.steps()

    def attempt(number: int) -> None:
        victim, calls = points[number]
        run = Run(tmp_path / str(number))
        shutil.copytree(saved.path, run.path)

        def change(manager: CheckpointManager, index: int) -> bool:
            manager.restore(like=like(COUNT))
            if index == victim:
                processes = current_processes()
                assert isinstance(processes, FakeProcesses)
                processes.die_after(calls)
            manager.add_metrics(2, {"accuracy": 0.5})
            manager.delete(1)
            return True

        outcomes = run.start(COUNT, change, timeout_seconds=2 * SILENCE_SECONDS)
        if isinstance(outcomes[victim].error, Died):
            deaths.append(points[number])
        for outcome in outcomes:
            assert outcome.value or isinstance(outcome.error, Died | ProcessError), outcome
        assert run.values(COUNT, go_on, keep=2) == [[2, 3]] * COUNT

    in_threads(attempt, len(points))
    assert {*deaths} >= {(0, 0), (2, 0)}
