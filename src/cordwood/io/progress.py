"""How far a long call is: counted where bytes are read, told to one callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

from cordwood.field_docs import document_fields

_EVERY_SECONDS = 0.1


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


class ProgressMeter:
    """Counts bytes for a callback, which is called by one thread at a time, and not too often.

    Args:
        total_bytes: how many there will be.
        report: called at the start, ten times a second, and at the end.
    """

    def __init__(self, total_bytes: int, report: Report) -> None:
        self._progress = Progress(0, total_bytes)
        self._report = report
        self._lock = threading.Lock()
        self._told = time.monotonic()
        report(self._progress)

    def advance(self, size_bytes: int, doing: str = "") -> None:
        """So many bytes more are done; what the callback raises is raised."""
        with self._lock:
            done, total, what = self._progress
            done += size_bytes
            self._progress = Progress(done, max(done, total), doing or what)
            now = time.monotonic()
            if now - self._told < _EVERY_SECONDS:
                return
            self._told = now
            self._report(self._progress)

    def finish(self) -> None:
        """All is done."""
        done, _, what = self._progress
        self._report(Progress(done, done, what))


_METER: ContextVar[ProgressMeter | None] = ContextVar("meter", default=None)


def current_meter() -> ProgressMeter | None:
    """That of the call that this thread is in; threads that help it are told by it."""
    return _METER.get()


@contextmanager
def report_progress(total_bytes: int, report: Report | None) -> Iterator[None]:
    """Report how far the block is; None reports nothing."""
    if report is None:
        yield
        return
    meter = ProgressMeter(total_bytes, report)
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)
    meter.finish()
