"""Numbered tasks in several threads, of which the first failure stops the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from cordwood.threads.started_thread import StartedThread, no_memory_error
from cordwood.threads.stop_check import POLL_SECONDS, STOP_CHECK, StoppedError, current_stop_check
from cordwood.threads.thread_counts import default_threads

T = TypeVar("T")
U = TypeVar("U")


def run_tasks(
    count: int, *, threads: int, make_worker: Callable[[], Callable[[int], None]]
) -> None:
    """Call workers with the numbers of range(count), in order, in up to `threads` threads.

    Each thread makes its own worker, with buffers of its own, and has the context variables of the
    caller: its progress meter and its stop check. After the first exception no further
    task starts; the exception is raised here once every thread has ended.
    """
    lock = threading.Lock()
    following = 0
    running = 0  # tasks that helper threads are working on
    pause = threading.Lock()  # locked, except for a moment whenever `running` reaches 0
    pause.acquire()
    failure: BaseException | None = None
    stopped = False  # True once there was a failure; unlike `failure` it is never reset

    def take(helping: int) -> int | None:
        nonlocal following, running
        with lock:
            if stopped or following >= count:
                return None
            following += 1
            running += helping
            return following - 1

    def finish() -> None:
        nonlocal running
        with lock:
            running -= 1
            if not running and pause.locked():
                pause.release()

    def fail(error: BaseException) -> None:
        nonlocal failure, stopped
        with lock:
            stopped = True
            if failure is None:
                failure = error

    # The frames of a helper outlive its last task for a moment. They must not keep arrays alive, so
    # they refer to workers only here, and this is cleared when the last task has ended.
    makers = [make_worker]
    workers: dict[int, Callable[[int], None]] = {}
    outer_check = current_stop_check()

    def check() -> None:
        if stopped:  # by a failure, or Ctrl-C, of another thread
            raise StoppedError
        outer_check()

    def help_out() -> None:
        STOP_CHECK.set(check)
        me = threading.get_ident()
        while (task := take(1)) is not None:
            try:
                if me not in workers:
                    workers[me] = makers[0]()
                workers[me](task)
            except BaseException as e:  # noqa: BLE001  (handed to the caller below)
                fail(e)
            finally:
                finish()

    def wait() -> None:
        # A helper that has not taken a task yet will get none.
        while running:
            pause.acquire(timeout=POLL_SECONDS)
            # The threads first: the last of them may end its task, and itself, between the two.
            if not any(helper.is_alive for helper in helpers) and running:
                raise no_memory_error()

    helpers: list[StartedThread] = []
    try:
        for _ in range(min(threads, count) - 1):
            try:
                helpers.append(StartedThread(partial(copy_context().run, help_out)))
            except (RuntimeError, MemoryError):  # no more threads: this one does the rest
                break
        worker = make_worker()
        while (task := take(0)) is not None:
            worker(task)
    except BaseException as e:  # noqa: BLE001  (Ctrl-C among them)
        fail(e)
    while True:
        try:
            wait()
            break
        except MemoryError as e:
            fail(e)
            if not any(helper.is_alive for helper in helpers):
                break
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            fail(e)
    makers.clear()
    workers.clear()
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # breaks the cycle of the exception, its frames and this closure


def map_in_threads(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, threads: int = 0
) -> list[T]:
    """Return the results of a function for each tuple of arguments, in their order.

    It is called in several threads, and should do most of its work without the GIL. After an
    exception no further call starts; the exception is raised here. 0 threads: `default_threads`.
    """
    results: dict[int, T] = {}

    def work(number: int) -> None:
        results[number] = function(*arguments[number])

    run_tasks(len(arguments), threads=threads or default_threads(), make_worker=lambda: work)
    return [results[number] for number in range(len(arguments))]


def together(first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    """Return the results of two functions, which are called at the same time.

    If one raises, the exception is raised here once both have ended.
    """
    calls: list[tuple[Callable[[], Any]]] = [(first,), (second,)]
    one, other = map_in_threads(lambda call: call(), calls, threads=2)
    return one, other
