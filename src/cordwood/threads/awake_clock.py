"""A clock that stands still while the whole process does, such as under SIGSTOP."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_SECONDS = 2.0  # between two ticks of a process that runs, even on a busy machine


class AwakeClock:
    """A monotonic clock that leaves out the time in which the process stood still.

    A loop calls `tick` every half second. A longer time between two ticks is a time in which
    nothing of this process ran: it was stopped, or its machine was suspended. A scheduler that
    gives a machine to several jobs in turn does that for a minute.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The time of the last tick, and how long the process has stood still. Both change at once:
        # another thread reads them between any two steps of a tick.
        self._state = (clock(), 0.0)

    def tick(self) -> float:
        """Return the time as `now` does; called by one thread, in its loop."""
        seconds = self._clock()
        ticked_seconds, stood_seconds = self._state
        stood_seconds += max(0.0, seconds - ticked_seconds - _LONGEST_SECONDS)
        self._state = (seconds, stood_seconds)
        return seconds - stood_seconds

    def now(self) -> float:
        """Return the time in seconds; in any thread."""
        ticked_seconds, stood_seconds = self._state
        return min(self._clock(), ticked_seconds + _LONGEST_SECONDS) - stood_seconds
