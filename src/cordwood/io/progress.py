"""Progress of a long call: its bytes are counted where they are read or written, and reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

from cordwood.public_names import document_fields

_EVERY_SECONDS = 0.1


@document_fields
class Progress(NamedTuple):
    """Progress of a save, load, verification or conversion.

    Attributes:
        done_bytes: bytes that have been read or written.
        total_bytes: bytes in all; an estimate that may change.
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

    @property
    def done_bytes(self) -> int:
        """The number of bytes that are done."""
        return self._progress.done_bytes

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
