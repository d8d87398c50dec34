"""Calls on executors: each ends once, also where workers fail; the others are cancelled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from cordwood.bulk import run_on_executor as module
from cordwood.bulk.run_on_executor import run_on_executor
from cordwood.bulk.worker_processes import WorkerProcesses
from cordwood.errors import CorruptionError, ProcessError
from tests.bulk.executors import (
    BrokenPool,
    IdleExecutor,
    InlineExecutor,
    die,
    die_once,
    spawned,
)

NUMBERS = [(number,) for number in range(8)]
SQUARES = [(number, number * number) for number in range(8)]


def square(number: int) -> int:
    return number * number


def test_each_call_ends_once() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert sorted(run_on_executor(square, NUMBERS, pool)) == SQUARES


def test_the_executor_gets_a_few_calls_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_FLIGHT", 3)
    executor = InlineExecutor()
    for number, result in enumerate(run_on_executor(square, NUMBERS, executor)):
        assert result == SQUARES[number]
        assert executor.calls <= number + 3


@pytest.mark.parametrize("error", [OSError(5, "EIO"), MemoryError(), CancelledError()])
def test_a_call_that_failed_is_made_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: int) -> None:
        if call in (2, 9):
            raise error

    with caplog.at_level(logging.WARNING, "cordwood"):
        results = sorted(run_on_executor(square, NUMBERS, InlineExecutor(fail)))
    assert results == SQUARES
    assert caplog.text.count("a task failed, and is run again") == 2


def test_a_call_that_fails_for_good_gives_its_error_after_three_attempts() -> None:
    error = OSError(5, "EIO")

    def fail(number: int) -> int:
        if number == 3:
            raise error
        return square(number)

    executor = InlineExecutor()
    results = dict(run_on_executor(fail, NUMBERS, executor))
    assert executor.calls == 7 + 3
    assert results.pop(3) is error
    assert sorted(results.items()) == [each for each in SQUARES if each[0] != 3]


@pytest.mark.parametrize("error", [CorruptionError("x"), TypeError("cannot pickle")])
def test_damage_and_mistakes_are_not_tried_again(error: Exception) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise error

    executor = InlineExecutor(fail)
    results = dict(run_on_executor(square, NUMBERS, executor))
    assert executor.calls == 8
    assert results[2] is error


def test_a_killed_worker_of_worker_processes_is_replaced(tmp_path: Path) -> None:
    arguments = [(number, str(tmp_path)) for number in range(8)]
    with WorkerProcesses(2) as pool:
        assert sorted(run_on_executor(die_once, arguments, pool)) == SQUARES
    assert (tmp_path / "died").exists()


def test_tasks_that_kill_every_worker_end_the_call() -> None:
    with WorkerProcesses(1) as pool, pytest.raises(ProcessError, match="0 of 1 tasks are done"):
        list(run_on_executor(die, [(1,)], pool))


def test_a_pool_that_broke_gives_the_results_that_it_has_and_then_an_error(
    tmp_path: Path,
) -> None:
    arguments = [(number, str(tmp_path)) for number in range(8)]
    results: list[tuple[int, int]] = []
    with spawned(1) as pool, pytest.raises(ProcessError, match=r"3 of 8 tasks are done.*new exec"):
        results.extend(run_on_executor(die_once, arguments, pool))
    assert results == SQUARES[:3]
    with spawned(1) as pool:  # the remedy
        assert sorted(run_on_executor(die_once, arguments, pool)) == SQUARES


def test_an_executor_without_workers_is_an_error() -> None:
    with pytest.raises(ProcessError, match=r"BrokenPool died \(a worker was killed\): 0 of 8"):
        list(run_on_executor(square, NUMBERS, BrokenPool()))


def test_the_loss_of_all_workers_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    def lose_the_first_eight(count: int) -> None:
        if count == 8:
            for future in executor.futures:
                future.set_exception(BrokenExecutor("lost"))
        elif count > 8:
            executor.futures[-1].set_result(count)

    executor = IdleExecutor(lose_the_first_eight)
    with caplog.at_level(logging.WARNING, "cordwood"):
        results = list(run_on_executor(square, NUMBERS, executor))
    assert sorted(position for position, _ in results) == [*range(8)]
    assert caplog.text.count("workers died; their tasks are run again") == 1


def test_lost_calls_whose_results_are_known_are_not_made_again() -> None:
    def lose(call: int) -> None:
        if call in (3, 5):
            raise BrokenExecutor("lost")

    asked: list[int] = []

    def results_of_lost(positions: Sequence[int]) -> Mapping[int, int]:
        asked.extend(positions)
        return {2: 4} if 2 in positions else {}

    executor = InlineExecutor(lose)
    results = run_on_executor(square, NUMBERS, executor, results_of_lost=results_of_lost)
    assert sorted(results) == SQUARES
    assert asked == [2, 4]
    assert executor.calls == 8 + 1


def test_an_interrupt_cancels_the_calls_that_have_not_begun() -> None:
    def interrupt(count: int) -> None:
        if count == 5:
            raise KeyboardInterrupt

    executor = IdleExecutor(interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(run_on_executor(square, NUMBERS, executor))
    assert [future.cancelled() for future in executor.futures] == [True] * 4 + [False]
