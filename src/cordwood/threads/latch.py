"""A latch: a flag that is set once, and for which threads wait.

Not `threading.Event`: its `wait` holds a lock between two steps of Python code. If a signal handler
runs there, in the main thread, the thread that sets the event waits for that lock until the handler
has returned; a handler that waits for that thread would wait for ever.
"""

from __future__ import annotations

import _thread
import time
from contextlib import suppress

_POLL_SECONDS = 0.05


class Latch:
    """A flag that is set once. `wait` may be interrupted, and entered again, between any two steps.

    `set` never waits.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = _thread.allocate_lock()  # held until it is set
        self._lock.acquire()

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._is_set = True
        with suppress(RuntimeError):  # it was set before
            self._lock.release()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it is set; return False after the timeout."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._is_set:
            seconds = _POLL_SECONDS if end is None else min(_POLL_SECONDS, end - time.monotonic())
            if seconds <= 0:
                return False
            if self._lock.acquire(timeout=seconds):
                with suppress(RuntimeError):
                    self._lock.release()  # wakes the next one that waits
        return True
