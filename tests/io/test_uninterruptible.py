"""Uninterruptible calls are not cut in two by interrupts."""

from __future__ import annotations

import _thread
import signal
import threading

import numpy as np
import pytest

from cordwood.io.uninterruptible import StopCheck, run_uninterruptible
from tests.alarms import alarms, interruptions


def test_values_and_errors_come_through() -> None:
    assert run_uninterruptible(lambda _: 7) == 7

    def fail(_check: StopCheck) -> None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        run_uninterruptible(fail)


def test_another_thread_is_used_by_the_main_thread_alone() -> None:
    def number(_check: StopCheck) -> int:
        return threading.get_ident()

    assert run_uninterruptible(number) != threading.get_ident()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run_uninterruptible(number)))
    thread.start()
    mine = thread.ident
    thread.join()
    assert results == [mine]


def test_without_threads_it_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    assert run_uninterruptible(lambda _: threading.current_thread()) is threading.main_thread()


def test_it_is_told_to_stop() -> None:
    ended = []

    def work(check: StopCheck) -> None:
        signal.raise_signal(signal.SIGALRM)  # only now: what has not begun never does
        try:
            while True:
                check()
                np.ones(1000).sum()
        finally:
            ended.append(True)

    with alarms(), pytest.raises(KeyboardInterrupt):
        run_uninterruptible(work)
    assert ended == [True]


def test_interrupts_at_any_moment_do_not_cut_it() -> None:
    begun = ended = cuts = 0

    def work(check: StopCheck) -> None:
        nonlocal begun, ended
        check()
        begun += 1
        for _ in range(20):
            np.ones(1000).sum()
        ended += 1

    # StoppedError, which the work is told to stop by, would come through here.
    for cut in interruptions(lambda: run_uninterruptible(work), times=300):
        cuts += cut
        assert begun == ended
    assert cuts > 30
