"""The log of long waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from cordwood.threads.log import log

REPORT_SECONDS = 10.0  # a wait is reported after this time, then after twice this time, ...


class WaitLogger:
    """The log reports of one wait: after 10 s, and again at growing intervals.

    The loop that waits calls `tick` at least once a second.
    Logs a warning after REPORT_SECONDS, and again after 2, 4, 8 ... times as long. A wait that
    was reported is reported once more, at INFO, when `end` is called.

    Example:
        wait_logger = WaitLogger("process 1 to save 'run/5'")
        while not future.done(timeout=0.5):
            wait_logger.tick()
        wait_logger.end()

    Args:
        what: the object of the wait: "waiting for {what}". A function is called for each report,
            so that it can name who holds a lock at that moment; it must not raise.
        hint: advice for the user, added after a semicolon.
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
        """Log the wait, if a report is due."""
        seconds = self.seconds
        if seconds < self._next_seconds:
            return
        while self._next_seconds <= seconds:
            self._next_seconds *= 2
        self._reported = self._what if isinstance(self._what, str) else self._what()
        log.warning("waiting for %s, %.0f s so far%s", self._reported, seconds, self._hint)

    def end(self) -> None:
        """Log that the wait is over, if it was reported."""
        if self._reported:
            log.info("no longer waiting for %s, after %.0f s", self._reported, self.seconds)
            self._reported = ""
