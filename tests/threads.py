"""The same work in several threads at once, and their results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["in_threads", "until"]


def in_threads(
    work: Callable[[int], None], count: int = 8, *, together: threading.Barrier | None = None
) -> None:
    """Call `work` with 0, 1 ... in as many threads; raise what the first that failed did.

    A thread that fails breaks the barrier `together`, so that no other waits for it there.
    """
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as e:  # noqa: BLE001
            failures.append(e)
            if together is not None:
                together.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def until(so: Callable[[], bool], *, seconds: float = 60) -> None:
    """Wait for what other threads or processes come to; an AssertionError if they do not."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.01)
