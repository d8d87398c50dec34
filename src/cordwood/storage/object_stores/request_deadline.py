"""The time until which a call repeats its requests to object stores and web servers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST_SECONDS = 5.0  # for each request, so that a call with a short time-out gets an answer, too

_DEADLINE: ContextVar[float] = ContextVar("request_deadline", default=math.inf)


@contextmanager
def request_deadline(deadline: float) -> Iterator[None]:
    """Let no request of the block be repeated after a monotonic time; the last begins then.

    A request without an answer at that time is given up, but not before it has lasted 5 s.
    """
    token = _DEADLINE.set(min(deadline, _DEADLINE.get()))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_until_deadline() -> float:
    """Return the seconds that remain for requests of this block; infinity without a deadline."""
    return _DEADLINE.get() - time.monotonic()


def refuse_silence(began: float) -> None:
    """Raise TimeoutError for a request, begun at that monotonic time, that is to be given up."""
    seconds = time.monotonic() - began
    if seconds >= _LEAST_SECONDS and seconds_until_deadline() <= 0:
        raise TimeoutError(f"no answer came within {seconds:.1f} s, and the call's time is over")
