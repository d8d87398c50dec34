"""Interrupts at chosen moments, by an alarm whose handler raises as that of Ctrl-C does."""

from __future__ import annotations

import gc
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["alarms", "interrupted", "least_seconds"]


@contextmanager
def alarms() -> Iterator[None]:
    """Let alarms raise `KeyboardInterrupt` in the block.

    The collector is off: Python has no way to raise from its callbacks, of which jax has one, so
    an alarm that rings there is lost.
    """

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    gc.disable()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


def interrupted(after: float, work: Callable[[], object]) -> bool:
    """Do `work`, with an alarm `after` so many seconds; whether it was cut off."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def least_seconds(work: Callable[[], object]) -> float:
    """The shortest time of ten that `work` took: an alarm set for later may come too late."""
    least = math.inf
    for _ in range(10):
        begun = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - begun)
    return least
