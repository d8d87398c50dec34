"""Run numbered tasks in a few threads, the caller's among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

_WAITING_THREADS = 16


def default_threads() -> int:
    """As many as this process may use cores, at most four."""
    return min(4, len(os.sched_getaffinity(0)))


def reading_threads(*, latency_bound: bool) -> int:
    """How many are to read files that wait for answers, or that do not."""
    return _WAITING_THREADS if latency_bound else default_threads()


class InterruptSafeSemaphore:
    """Lets so many threads at a time into a `with` block; two or more.

    Ctrl-C on the way in or out costs one slot at most, and locks nobody out: a semaphore of the
    standard library has a lock of its own, which would stay locked.
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
    """Call a worker with each of range(count), taken in order by up to `threads` threads.

    Each thread makes its own worker (and with it its own buffers). After the first exception no
    further task begins; it is raised here once every thread has ended.
    """
    if count == 0:
        return
    lock = threading.Lock()
    following = 0
    running = 0  # tasks that helpers are in the middle of
    pause = threading.Lock()  # held, but for a moment whenever `running` reaches 0
    pause.acquire()
    failure: BaseException | None = None
    stopped = False  # as `failure` is, but for good

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
        # Not Thread.join: Ctrl-C in it makes the thread look ended while it still writes. A
        # helper that has not taken a task yet will find none.
        while running:
            pause.acquire(timeout=0.05)

    try:
        for _ in range(min(threads, count) - 1):
            try:
                threading.Thread(target=help_out, name="cordwood-io", daemon=True).start()
            except RuntimeError:  # no more threads to be had: this one does it all
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
