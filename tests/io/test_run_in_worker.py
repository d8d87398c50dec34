"""A worker of the main thread: what runs in it is not cut in two by interrupts."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import numpy as np
import pytest

from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.stop_check import StoppedError, check_stop, never_stop, stop_check
from cordwood.threads.thread_pool import run_tasks
from tests.alarms import alarms, interruptions

NUMBER: ContextVar[int] = ContextVar("number", default=0)


def test_values_and_errors_come_through() -> None:
    assert run_in_worker(lambda: 7) == 7

    def fail() -> None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk") as raised:
        run_in_worker(fail)
    names = [frame.name for frame in traceback.extract_tb(raised.tb)]
    assert names[-1] == "fail"


def test_another_thread_is_used_by_the_main_thread_alone() -> None:
    assert run_in_worker(threading.get_ident) != threading.get_ident()
    assert run_in_worker(lambda: run_in_worker(threading.get_ident) == threading.get_ident())
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run_in_worker(threading.get_ident)))
    thread.start()
    mine = thread.ident
    thread.join()
    assert results == [mine]


def test_without_threads_it_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    assert run_in_worker(threading.current_thread) is threading.main_thread()


def test_context_variables_are_those_of_the_caller() -> None:
    token = NUMBER.set(5)
    try:
        assert run_in_worker(NUMBER.get) == 5
        seen = set()

        def make_worker() -> Callable[[int], None]:
            return lambda _: seen.add(NUMBER.get())

        run_in_worker(lambda: run_tasks(100, threads=4, make_worker=make_worker))
        assert seen == {5}
    finally:
        NUMBER.reset(token)


def test_what_it_holds_does_not_outlive_it() -> None:
    held = [np.ones(3)]
    alive = weakref.ref(held[0])
    gc.disable()
    try:
        run_in_worker(partial(np.sum, held.pop()))
        assert alive() is None
    finally:
        gc.enable()


def test_profilers_follow_it() -> None:
    names = set()
    threading.setprofile(lambda frame, *_: names.add(frame.f_code.co_name))
    try:

        def followed() -> None:
            check_stop()

        run_in_worker(followed)
    finally:
        threading.setprofile(None)
    assert "followed" in names
    assert sys.getprofile() is None


def test_an_interrupt_stops_the_worker() -> None:
    ended = []

    def work() -> None:
        signal.raise_signal(signal.SIGALRM)  # only now: what has not begun never does
        try:
            while True:
                check_stop()
                np.ones(1000).sum()
        finally:
            ended.append(True)

    with alarms(), pytest.raises(KeyboardInterrupt):
        run_in_worker(work)
    assert ended == [True]


def test_an_interrupt_stops_the_helpers_of_the_worker() -> None:
    started = threading.Event()

    def make_worker() -> Callable[[int], None]:
        def work(_: int) -> None:
            if not started.is_set():
                started.set()
                signal.raise_signal(signal.SIGALRM)
            check_stop()
            np.ones(1000).sum()

        return work

    with alarms(), pytest.raises(KeyboardInterrupt):
        run_in_worker(lambda: run_tasks(10**9, threads=4, make_worker=make_worker))


def test_what_removes_files_is_not_stopped() -> None:
    removed = []

    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        try:
            while True:
                check_stop()
        except StoppedError:
            with stop_check(never_stop):
                check_stop()
                removed.append(True)
            raise

    with alarms(), pytest.raises(KeyboardInterrupt):
        run_in_worker(work)
    assert removed == [True]


def test_another_interrupt_does_not_end_the_wait_for_it() -> None:
    ended = []

    def work() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGALRM)
            np.ones(10_000_000).sum()
        ended.append(True)

    with alarms(), pytest.raises(KeyboardInterrupt):
        run_in_worker(work)
    assert ended == [True]


def test_interrupts_at_any_moment_do_not_cut_it() -> None:
    begun = ended = cuts = 0

    def work() -> None:
        nonlocal begun, ended
        check_stop()
        begun += 1
        for _ in range(20):
            np.ones(1000).sum()
        ended += 1

    # StoppedError, which stops the work, would come through here.
    for cut in interruptions(lambda: run_in_worker(work), times=300):
        cuts += cut
        assert begun == ended
    assert cuts > 30
