"""Tasks in several threads."""

from __future__ import annotations

import threading
import weakref

import pytest

from cordwood.threads import thread_pool
from cordwood.threads.started_thread import StartedThread
from cordwood.threads.thread_pool import map_in_threads, run_tasks


class Memory:
    """A thing that a worker uses, such as an array."""


def test_nothing_of_a_worker_outlives_the_call() -> None:
    for _ in range(300):  # a helper thread may still be in its last step
        memory = Memory()
        reference = weakref.ref(memory)

        def work(task: int, memory: Memory = memory) -> None:
            assert task >= 0
            assert memory is not None

        run_tasks(4, threads=4, make_worker=lambda work=work: work)  # type: ignore[misc]
        del work, memory
        assert reference() is None


def test_the_results_are_in_the_order_of_the_arguments() -> None:
    arguments = [(number,) for number in range(100)]
    assert map_in_threads(lambda number: number * 2, arguments, threads=4) == list(range(0, 200, 2))


def test_a_helper_may_end_while_the_caller_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    caller, looked, both = threading.get_ident(), threading.Event(), threading.Barrier(2)

    class EndsWhenLookedAt(StartedThread):
        @property
        def is_alive(self) -> bool:
            looked.set()
            assert self._ended.wait(60)
            return False

    def work(_task: int) -> None:
        both.wait(60)  # each thread has one task
        if threading.get_ident() != caller:
            assert looked.wait(60)

    monkeypatch.setattr(thread_pool, "StartedThread", EndsWhenLookedAt)
    run_tasks(2, threads=2, make_worker=lambda: work)
