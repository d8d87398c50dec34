"""Run something where no Ctrl-C comes in the middle of it.

Python raises KeyboardInterrupt between any two steps of the main thread, those of a `finally`
among them: descriptors and locks would be lost. So what must not be cut in two runs in a thread
of its own, and is told to stop at the next place where it can.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
StopCheck: TypeAlias = Callable[[], None]

_POLL_SECONDS = 0.05


class StoppedError(BaseException):
    """The main thread was interrupted. Leaves `run_uninterruptible` as that interrupt."""

    def __str__(self) -> str:
        return "it was interrupted"  # which other processes are told


def run_uninterruptible(function: Callable[[StopCheck], T]) -> T:
    """What `function` returns, or raises.

    From the main thread it is called in another one. After an interrupt (Ctrl-C, or whatever a
    signal handler raises) the `check` that it was given raises StoppedError; when it has ended,
    the interrupt is raised here. From any other thread it is called at once: there are no
    interrupts there.
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
    """A `check` that never stops anything."""


class _Run(Generic[T]):
    """A call in another thread."""

    def __init__(self, function: Callable[[StopCheck], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._stopped = False
        self._begun = False
        self._over = False
        self._values: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> bool:
        """False where there are no more threads to be had."""
        try:
            # Not threading.Thread, which an interrupt in its `start` leaves in disorder.
            _thread.start_new_thread(self._body, ())
        except RuntimeError:
            return False
        return True

    def _body(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._begun = True
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
            self._over = self._over or not self._begun

    def wait(self) -> None:
        """Until it has ended, or will never begin."""
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
