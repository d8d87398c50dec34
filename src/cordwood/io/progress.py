"""Progress of a long call: bytes are counted where they are read, and reported to a callback."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

from cordwood.public_names import document_fields

_log = logging.getLogger("cordwood")

_EVERY_SECONDS = 0.1
REPORT_SECONDS = 10.0  # a wait is reported after this time, then after twice this time, ...


@document_fields
class Progress(NamedTuple):
    """Progress of a save, load, verification or conversion.

    Attributes:
        done_bytes: bytes that have been read or written.
        total_bytes: bytes in all; an estimate that may grow.
        doing: the leaf or file at hand; "" where it is not known.
    """

    done_bytes: int
    total_bytes: int
    doing: str = ""


Report: TypeAlias = Callable[[Progress], None]
ProgressOption: TypeAlias = Report | bool | None  # of public functions; True: a bar


class ProgressMeter:
    """A byte counter that reports to a callback, from one thread at a time.

    Args:
        total_bytes: the expected number of bytes.
        report: called at the start, at most ten times a second, and when all bytes are done.
    """

    def __init__(self, total_bytes: int, report: Report) -> None:
        self._progress = Progress(0, total_bytes)
        self._report = report
        self._lock = threading.Lock()
        self._reported_seconds = time.monotonic()
        report(self._progress)

    def advance(self, size_bytes: int, doing: str = "") -> None:
        """Count more bytes as done. Raises what the callback raises."""
        with self._lock:
            done, total, what = self._progress
            done += size_bytes
            self._progress = Progress(done, max(done, total), doing or what)
            seconds = time.monotonic()
            is_last = size_bytes > 0 and done == total
            if seconds - self._reported_seconds < _EVERY_SECONDS and not is_last:
                return
            self._reported_seconds = seconds
            self._report(self._progress)

    def finish(self) -> None:
        """Report that all is done."""
        done, _, what = self._progress
        self._report(Progress(done, done, what))


# The meter of the call in this thread, which passes it to its worker threads.
METER: ContextVar[ProgressMeter | None] = ContextVar("meter", default=None)


@contextmanager
def report_progress(total_bytes: int, report: Report | None) -> Iterator[None]:
    """Report the progress of the block; with None report nothing."""
    if report is None:
        yield
        return
    meter = ProgressMeter(total_bytes, report)
    token = METER.set(meter)
    try:
        yield
    finally:
        METER.reset(token)
    meter.finish()


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
        _log.warning("waiting for %s, %.0f s so far%s", self._reported, seconds, self._hint)

    def end(self) -> None:
        """Log that the wait is over, if it was reported."""
        if self._reported:
            _log.info("no longer waiting for %s, after %.0f s", self._reported, self.seconds)
            self._reported = ""
