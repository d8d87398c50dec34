"""Slots: so many threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cordwood.io.threads import InterruptSafeSemaphore, run_tasks

SECONDS = 30  # until a test has failed


def check_that_so_many_come_in(slots: InterruptSafeSemaphore, count: int) -> None:
    """Each waits in its slot for as many as there ought to be: and there were never more."""
    full = threading.Barrier(count)
    lock = threading.Lock()
    inside = most = 0

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            nonlocal inside, most
            with slots:
                with lock:
                    inside += 1
                    most = max(most, inside)
                full.wait(SECONDS)
                with lock:
                    inside -= 1

        return work

    run_tasks(12 * count, threads=4 * count, make_worker=make_worker)
    assert (inside, most) == (0, count)


def test_as_many_as_there_are_slots() -> None:
    check_that_so_many_come_in(InterruptSafeSemaphore(3), 3)


def test_a_slot_that_was_never_given_back_locks_nobody_out() -> None:
    slots = InterruptSafeSemaphore(3)
    slots.__enter__()
    check_that_so_many_come_in(slots, 2)


def test_an_error_gives_its_slot_back() -> None:
    slots = InterruptSafeSemaphore(2)
    for _ in range(5):
        with pytest.raises(ValueError, match="inside"), slots:
            raise ValueError("inside")
    check_that_so_many_come_in(slots, 2)
