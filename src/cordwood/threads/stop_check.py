"""The check by which long work ends early: after an interrupt, or when another process has failed.

Python raises KeyboardInterrupt in the main thread only. Work in other threads calls `check_stop`
wherever it can end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

StopCheck: TypeAlias = Callable[[], None]  # raises an exception to end the work that calls it

POLL_SECONDS = 0.05  # between two checks of a thread that waits


class StoppedError(BaseException):
    """An interrupt of the main thread; `run_in_worker` raises that interrupt in its place."""

    def __str__(self) -> str:
        return "it was interrupted"  # this text is sent to the other processes


def check_stop() -> None:
    """Raise the exception that ends the work of this thread, if it must stop.

    That is StoppedError after an interrupt of the main thread, and ProcessError in a rendezvous of
    which another process has failed. Long work calls this wherever it can end.
    """
    STOP_CHECK.get()()


def current_stop_check() -> StopCheck:
    """Return the function that `check_stop` calls now."""
    return STOP_CHECK.get()


@contextmanager
def stop_check(check: StopCheck) -> Iterator[None]:
    """Let `check_stop` call `check` in the block."""
    token = STOP_CHECK.set(check)
    try:
        yield
    finally:
        STOP_CHECK.reset(token)


def never_stop() -> None:
    """Do nothing: the stop check of work that is never stopped, such as the removal of files."""


STOP_CHECK: ContextVar[StopCheck] = ContextVar("stop_check", default=never_stop)
