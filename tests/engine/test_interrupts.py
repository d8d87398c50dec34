"""Ctrl-C in the middle of a save: no thread goes on writing after it was reported."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from cordwood.engine.parallel import run_tasks


def test_no_task_runs_after_an_interrupt_was_raised() -> None:
    rng = np.random.default_rng(0)
    running: set[int] = set()
    lock = threading.Lock()

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            with lock:
                running.add(task)
            try:
                np.ones(100_000).sum()
            finally:
                with lock:
                    running.discard(task)

        return work

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for _ in range(150):
            begun = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, 5e-3)))
            try:
                run_tasks(1000, threads=4, make_worker=make_worker)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert time.perf_counter() - begun < 30
            helpers_busy = {task for task in running if task is not None}
            with lock:
                # The caller's own task may have been cut off; helpers' never are.
                assert len(helpers_busy) <= 1
                running.clear()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 50


def test_the_first_failure_is_raised() -> None:
    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            if task == 7:
                raise OSError("the disk")

        return work

    with pytest.raises(OSError, match="the disk"):
        run_tasks(100, threads=4, make_worker=make_worker)
