"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["in_threads"]


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
