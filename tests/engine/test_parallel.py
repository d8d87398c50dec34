"""Slots: so many threads at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cordwood.engine.parallel import Slots, run_tasks


def most_at_once(slots: Slots) -> int:
    lock = threading.Lock()
    inside = most = 0

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            nonlocal inside, most
            with slots:
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.002)
                with lock:
                    inside -= 1

        return work

    run_tasks(40, threads=8, make_worker=make_worker)
    assert inside == 0
    return most


def test_no_more_than_there_are_slots() -> None:
    assert most_at_once(Slots(3)) == 3


def test_a_slot_that_an_interrupt_has_cost_locks_nobody_out() -> None:
    slots = Slots(3)
    slots.__enter__()
    assert most_at_once(slots) == 2


def test_an_error_gives_its_slot_back() -> None:
    slots = Slots(2)
    for _ in range(5):
        try:
            with slots:
                raise ValueError
        except ValueError:
            pass
    assert most_at_once(slots) == 2
