"""Run numbered tasks in a few threads, the caller's among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

__all__ = ["default_threads", "run_tasks"]


def default_threads() -> int:
    """As many as this process may use cores, at most four."""
    return min(4, len(os.sched_getaffinity(0)))


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
    failure: BaseException | None = None

    def take() -> int | None:
        nonlocal following
        with lock:
            if failure is not None or following >= count:
                return None
            following += 1
            return following - 1

    def fail(error: BaseException) -> None:
        nonlocal failure
        with lock:
            if failure is None:
                failure = error

    def work() -> None:
        try:
            worker = make_worker()
            while (task := take()) is not None:
                worker(task)
        except BaseException as e:  # noqa: BLE001  (handed to the caller below)
            fail(e)

    helpers: list[threading.Thread] = []
    try:
        for _ in range(min(threads, count) - 1):
            helper = threading.Thread(target=work, name="cordwood-io", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # no more threads to be had: this one does it all
                break
            helpers.append(helper)
        work()
        for helper in helpers:
            helper.join()
    except BaseException as e:  # Ctrl-C between tasks or while joining
        fail(e)
        for helper in helpers:
            helper.join()
        raise
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # breaks the cycle of the exception, its frames and this closure
