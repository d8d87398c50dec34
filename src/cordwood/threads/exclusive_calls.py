"""The calls that change one object: one at a time, and only in the process that made it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from cordwood.threads.forked_error import forked_error
from cordwood.threads.stop_check import check_stop

T = TypeVar("T")

_POLL_SECONDS = 0.05


class ExclusiveCalls:
    """A lock around calls, which are made in workers: the main thread never holds it.

    Args:
        what: the object that the calls change, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked from the one that made the object."""
        return os.getpid() != self._process

    def require_process(self) -> None:
        """Raise StorageError in a process that was forked from the one that made the object."""
        if self.is_forked:
            raise forked_error(self._what, self._process)

    def run(self, call: Callable[[], T]) -> T:
        """Call a function while no other thread is in a call. Raises what `check_stop` raises."""
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            check_stop()
        try:
            return call()
        finally:
            self._lock.release()
