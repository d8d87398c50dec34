"""One process of several fails, once: the step is lost, and the next is saved by all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cordwood import CheckpointManager, EverySeconds, EverySteps
from cordwood.errors import PendingSaveError, ProcessError
from cordwood.policies import SavePolicy
from tests.manager.counters import Counter
from tests.processes.failures import Huge
from tests.processes.fake_processes import FakeProcesses, run_processes
from tests.processes.test_process_group import in_the_foreground, tree_of

__all__ = ["in_the_foreground"]

LAST = 8
BAD = 3  # the step whose save fails
TIMEOUT_SECONDS = 5.0


class BrokenCounter(Counter):
    """An item whose state cannot be had, once."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def get_state(self) -> dict[str, Any]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().get_state()


def fail_items(manager: CheckpointManager, step: int) -> None:
    manager.save(step, tree_of(step), items={"data": BrokenCounter(ZeroDivisionError("odd"))})


def fail_items_by_interrupt(manager: CheckpointManager, step: int) -> None:
    manager.save(step, tree_of(step), items={"data": BrokenCounter(KeyboardInterrupt())})


def fail_leaf(manager: CheckpointManager, step: int) -> None:
    manager.save(step, {**tree_of(step), "w": object()}, items={"data": Counter()})


def fail_memory(manager: CheckpointManager, step: int) -> None:
    manager.save(step, {**tree_of(step), "huge": Huge()}, items={"data": Counter()})


def fail_metrics(manager: CheckpointManager, step: int) -> None:
    manager.save(step, tree_of(step), metrics={"loss": "low"})  # type: ignore[dict-item]


def fail_asking(manager: CheckpointManager, step: int) -> None:
    with patch.object(manager._decider, "ask", side_effect=KeyboardInterrupt):
        manager.save(step, tree_of(step))


FAILURES = [
    fail_items,
    fail_items_by_interrupt,
    fail_leaf,
    fail_memory,
    fail_metrics,
    fail_asking,
]


CLOCK = EverySteps(1) | EverySeconds(1e9)  # process 0 is asked at each step


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(
    ("fail", "save"),
    [(fail, save) for fail in FAILURES for save in (None, CLOCK)],
)
def test_the_next_save_works(
    tmp_path: Path,
    fail: Callable[[CheckpointManager, int], None],
    process: int,
    save: SavePolicy | None,
) -> None:
    def work(processes: FakeProcesses) -> dict[int, BaseException]:
        failed: dict[int, BaseException] = {}
        manager = CheckpointManager(tmp_path, save=save, timeout_seconds=TIMEOUT_SECONDS)
        for step in range(1, LAST + 1):
            try:
                if step == BAD and processes.index == process:
                    fail(manager, step)
                else:
                    manager.save(step, tree_of(step), items={"data": Counter(step)})
            except BaseException as e:  # noqa: BLE001  (as a loop that logs it, and goes on)
                failed[step] = e
        manager.wait()
        return failed

    begun = time.monotonic()
    outcomes = run_processes(3, work)
    assert time.monotonic() - begun < 3 * TIMEOUT_SECONDS
    for index, outcome in enumerate(outcomes):
        assert outcome.error is None
        if index == process:
            assert list(outcome.value) == [BAD]
            assert not isinstance(outcome.value[BAD], ProcessError)
        else:
            assert set(outcome.value) in ({BAD}, {BAD + 1})
            (error,) = outcome.value.values()
            assert isinstance(error, ProcessError | PendingSaveError)
            assert f"process {process} " in str(error)
    assert CheckpointManager(tmp_path).steps() == [s for s in range(1, LAST + 1) if s != BAD]


LEFT_OUT: dict[int, list[int]] = {0: [1, 2, 3, 4, 5, 6], 1: [1, 2, 4, 5, 6], 2: [1, 2, 3, 4, 5, 6]}
TOO_MANY: dict[int, list[int]] = {0: [1, 2, 3, 4, 5, 6], 1: [1, 2, 3, 3, 4, 5, 6]}
ANOTHER: dict[int, list[int]] = {0: [1, 2, 4, 5, 6], 1: [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("turned", [False, True], ids=["another", "process-0"])
@pytest.mark.parametrize("calls", [LEFT_OUT, TOO_MANY, ANOTHER])
@pytest.mark.parametrize("save", [None, CLOCK], ids=["all", "clock"])
def test_processes_that_call_save_for_other_steps(
    tmp_path: Path, calls: dict[int, list[int]], save: SavePolicy | None, turned: bool
) -> None:
    count = len(calls)

    def work(processes: FakeProcesses) -> set[int]:
        failed = set()
        manager = CheckpointManager(tmp_path, save=save, timeout_seconds=TIMEOUT_SECONDS)
        for step in calls[
            1 - processes.index if turned and processes.index < 2 else processes.index
        ]:
            try:
                manager.save(step, tree_of(step))
            except (ProcessError, PendingSaveError):
                failed.add(step)
        return failed

    begun = time.monotonic()
    outcomes = run_processes(count, work)
    assert time.monotonic() - begun < 3 * TIMEOUT_SECONDS
    assert [outcome.error for outcome in outcomes] == [None] * count
    steps = CheckpointManager(tmp_path).steps()
    assert {1, 2, 5, 6} <= set(steps)
    assert 4 in steps or calls is TOO_MANY or save is not None
    for outcome in outcomes:
        assert outcome.value <= {3, 4, 5}
