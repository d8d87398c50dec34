"""Calls that Ctrl-C cannot interrupt in the middle.

Python raises KeyboardInterrupt between any two steps of the main thread, also inside a `finally`
block: descriptors and locks would be lost. So code that must not be interrupted runs in another
thread, and stops at the next point where it calls its stop check.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
StopCheck: TypeAlias = Callable[[], None]  # raises an exception to end the work that calls it

_POLL_SECONDS = 0.05


class StoppedError(BaseException):
    """An interrupt of the main thread; `run_uninterruptible` raises that interrupt in its place."""

    def __str__(self) -> str:
        return "it was interrupted"  # this text is sent to the other processes


def run_uninterruptible(function: Callable[[StopCheck], T]) -> T:
    """Call a function that no interrupt cuts in two; return its result, or raise its exception.

    In the main thread, the function is called in another thread. After an interrupt (Ctrl-C, or
    an exception of a signal handler) the `check` that it gets as argument raises StoppedError; once
    the function has ended, the interrupt is raised here. In any other thread it is called directly:
    there are no interrupts there.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(never_stop)
    run = _Run(function)
    interrupt: BaseException | None = None
    started = False
    while True:
        try:
            if not started:
                started = True
                if not run.start():
                    return function(never_stop)
            run.wait()
            break
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            interrupt = e
            run.stop()
    if interrupt is not None:
        raise interrupt
    return run.result()


def never_stop() -> None:
    """Do nothing: the stop check of work that is never stopped."""


class _Run(Generic[T]):
    """A call in another thread."""

    def __init__(self, function: Callable[[StopCheck], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._stopped = False
        self._started = False
        self._over = False
        self._values: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> bool:
        """Start the thread; return False if no more threads are possible."""
        try:
            # Not threading.Thread: an interrupt in its `start` leaves it in an undefined state.
            _thread.start_new_thread(self._body, ())
        except RuntimeError:
            return False
        return True

    def _body(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._started = True
        try:
            self._values.append(self._function(self._check))
        except BaseException as e:  # noqa: BLE001  (handed to the main thread)
            self._error = e
        finally:
            self._over = True
            self._ended.release()

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._over = self._over or not self._started

    def wait(self) -> None:
        """Wait until the call has ended, or will never start."""
        while not self._over:
            self._ended.acquire(timeout=_POLL_SECONDS)

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._values.pop()
        try:
            raise error
        finally:
            error = None  # breaks the cycle of the exception and this frame
