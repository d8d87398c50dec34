"""What runs apart is not cut in two by interrupts."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from cordwood.engine.apart import Check, StoppedError, run_apart


class Interrupt(Exception):
    pass


@contextmanager
def alarms() -> Iterator[None]:
    def interrupt(signum: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_values_and_errors_come_through() -> None:
    assert run_apart(lambda _: 7) == 7

    def fail(_check: Check) -> None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        run_apart(fail)


def test_another_thread_is_used_by_the_main_thread_alone() -> None:
    def number(_check: Check) -> int:
        return threading.get_ident()

    assert run_apart(number) != threading.get_ident()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run_apart(number)))
    thread.start()
    mine = thread.ident
    thread.join()
    assert found == [mine]


def test_without_threads_it_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    assert run_apart(lambda _: threading.current_thread()) is threading.main_thread()


def test_it_is_told_to_stop() -> None:
    ended = []

    def work(check: Check) -> None:
        try:
            while True:
                check()
                np.ones(1000).sum()
        finally:
            ended.append(True)

    with alarms():
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Interrupt):
            run_apart(work)
    assert ended == [True]


@pytest.mark.usefixtures("collector_off")
def test_interrupts_at_any_moment_do_not_cut_it() -> None:
    rng = np.random.default_rng(0)
    begun = ended = interrupted = 0

    def work(check: Check) -> None:
        nonlocal begun, ended
        check()
        begun += 1
        for _ in range(20):
            np.ones(1000).sum()
        ended += 1

    start = time.perf_counter()
    run_apart(work)
    one = time.perf_counter() - start
    with alarms():
        for _ in range(300):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, one * 1.2)))
                    run_apart(work)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
            except StoppedError:
                pytest.fail("seen outside")
            assert begun == ended
    assert interrupted > 30
