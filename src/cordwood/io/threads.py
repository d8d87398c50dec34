"""Numbered tasks in a few threads, one of which is the caller's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")

_WAITING_THREADS = 16


def default_threads() -> int:
    """Return the number of cores that this process may use, but at most four."""
    return min(4, len(os.sched_getaffinity(0)))


def reading_threads(*, latency_bound: bool) -> int:
    """Return the number of threads to read files with: more if reads wait for a network."""
    return _WAITING_THREADS if latency_bound else default_threads()


class InterruptSafeSemaphore:
    """A semaphore of two or more, for `with` blocks, that an interrupt cannot leave locked.

    Ctrl-C while a thread enters or leaves the block loses at most one slot. A semaphore of the
    standard library has an internal lock, which would stay locked.
    """

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *_: object) -> None:
        self._free.put(None)


def run_tasks(
    count: int, *, threads: int, make_worker: Callable[[], Callable[[int], None]]
) -> None:
    """Call workers with the numbers of range(count), in order, in up to `threads` threads.

    Each thread makes its own worker, with buffers of its own. After the first exception no further
    task starts; the exception is raised here once every thread has ended.
    """
    if count == 0:
        return
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

    def help_out() -> None:
        try:
            worker = make_worker()
            while (task := take(1)) is not None:
                try:
                    worker(task)
                except BaseException as e:  # noqa: BLE001  (handed to the caller below)
                    fail(e)
                finally:
                    finish()
        except BaseException as e:  # noqa: BLE001
            fail(e)

    def wait() -> None:
        # Not Thread.join: after Ctrl-C in it the thread seems to have ended while it still writes.
        # A helper that has not taken a task yet will get none.
        while running:
            pause.acquire(timeout=0.05)

    try:
        for _ in range(min(threads, count) - 1):
            try:
                threading.Thread(target=help_out, name="cordwood-io", daemon=True).start()
            except RuntimeError:  # no more threads are possible: this thread does the rest
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
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            fail(e)
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # breaks the cycle of the exception, its frames and this closure


def map_in_threads(
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]
) -> list[Result]:
    """Return the results of a function for each tuple of arguments, in their order.

    It is called in several threads, and should do most of its work without the GIL. After an
    exception no further call starts; the exception is raised here.
    """
    results: dict[int, Result] = {}

    def work(number: int) -> None:
        results[number] = function(*arguments[number])

    run_tasks(len(arguments), threads=default_threads(), make_worker=lambda: work)
    return [results[number] for number in range(len(arguments))]
