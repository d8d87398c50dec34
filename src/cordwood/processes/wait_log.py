"""Report a long wait in the log: after 10 s, and again at growing intervals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger("cordwood")

REPORT_SECONDS = 10.0  # a wait is reported when it has taken so long; then after twice that, ...


class WaitLogger:
    """One wait. The loop that waits calls `tick` in each round, at least every second or so.

    Logs a warning after REPORT_SECONDS, and again after 2, 4, 8 ... times as long. A wait that
    was reported is reported once more, at INFO, when `end` is called.

    Example:
        waiting = Waiting("process 1 to save 'run/5'")
        while not future.done(timeout=0.5):
            waiting.tick()
        waiting.end()

    Args:
        what: what is waited for: "waiting for {what}". A function is called for each report, so
            that it can look who holds a lock now; it must not raise.
        hint: what to do about it, added after a semicolon.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        what: str | Callable[[], str],
        *,
        hint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._hint = f"; {hint}" if hint else ""
        self._clock = clock
        self._start = clock()
        self._next_seconds = REPORT_SECONDS
        self._reported = ""

    @property
    def seconds(self) -> float:
        """The time since the wait began."""
        return self._clock() - self._start

    def tick(self) -> None:
        """Log the wait, if that is due."""
        seconds = self.seconds
        if seconds < self._next_seconds:
            return
        while self._next_seconds <= seconds:
            self._next_seconds *= 2
        self._reported = self._what if isinstance(self._what, str) else self._what()
        _log.warning("waiting for %s, %.0f s so far%s", self._reported, seconds, self._hint)

    def end(self) -> None:
        """Log that the wait is over, if it was reported."""
        if self._reported:
            _log.info("no longer waiting for %s, after %.0f s", self._reported, self.seconds)
            self._reported = ""
