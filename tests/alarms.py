"""Interrupts at chosen moments: an alarm whose handler raises like that of Ctrl-C."""

from __future__ import annotations

import gc
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["alarms", "interrupted", "interruptions"]

_disarmed: list[bool] = []  # not empty once the alarm of `interrupted` is over


@contextmanager
def alarms() -> Iterator[None]:
    """Let alarms raise `KeyboardInterrupt` in the block.

    The collector is off: Python has no way to raise from its callbacks, of which jax has one, so
    an alarm that rings there is lost.
    """

    def interrupt(signum: int, frame: object) -> None:
        if not _disarmed:  # an alarm that another thread has received may arrive late
            raise KeyboardInterrupt

    _disarmed.clear()
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
            _disarmed.clear()
            signal.setitimer(signal.ITIMER_REAL, after)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _disarmed.append(True)
    except KeyboardInterrupt:
        return True
    return False


def interruptions(work: Callable[[], object], *, times: int) -> Iterator[bool]:
    """Do `work` so many times, with an alarm at a random moment of each; whether it was cut off.

    The alarm is set for within little more than the shortest time that `work` has taken so far: for
    later it may come too late. A busy machine may have been slow at first.
    """
    shortest = min(_seconds(work) for _ in range(10))
    rng = random.Random(0)
    with alarms():
        for _ in range(times):
            begun = time.perf_counter()
            cut = interrupted(rng.uniform(1e-5, 1.2 * shortest), work)
            if not cut:
                shortest = min(shortest, time.perf_counter() - begun)
            yield cut


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
