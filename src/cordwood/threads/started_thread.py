"""The start of a thread, which takes no lock and cannot wait for ever.

`threading.Thread.start` takes a lock that all threads of the process share, and waits until the new
thread says that it runs. A signal handler that starts a thread may have interrupted another start,
which holds that lock; and a thread for which there is no memory ends before it says anything.
"""

from __future__ import annotations

import _thread
import sys
import threading
import weakref
from collections.abc import Callable

from cordwood.threads.latch import Latch

_POLL_SECONDS = 0.05

_this_thread = threading.local()


class _Token:
    """An object that exists for as long as its thread: only the thread refers to it."""

    __slots__ = ("__weakref__",)


class StartedThread:
    """A thread that was started; the interpreter does not wait for it.

    Args:
        function: what it calls. It should raise nothing: an exception goes to sys.unraisablehook.

    Raises RuntimeError or MemoryError if no more threads are possible.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        token = _Token()
        self._token = weakref.ref(token)
        self._begun, self._ended = Latch(), Latch()
        _thread.start_new_thread(_run, (function, self._begun, self._ended, token))

    @property
    def is_alive(self) -> bool:
        """False once the thread has ended, also if there was no memory for its first step."""
        return self._token() is not None

    def wait_until_begun(self) -> None:
        """Wait until it runs. Raises MemoryError if it has ended before."""
        while not self._begun.wait(_POLL_SECONDS):
            if not self.is_alive and not self._begun.is_set:
                raise no_memory_error()

    def wait(self) -> None:
        """Wait until it has ended."""
        while not self._ended.wait(_POLL_SECONDS) and self.is_alive:
            pass


def is_started_thread() -> bool:
    """Return True in a thread that is a StartedThread."""
    return getattr(_this_thread, "is_started", False)


def no_memory_error() -> MemoryError:
    """Return the error for a thread that has ended without a result."""
    return MemoryError(
        "a thread ended before it could say how: there is too little memory for it; free some, or "
        "raise the limit of the process (ulimit -v) or of its container, then save again"
    )


def _run(function: Callable[[], None], begun: Latch, ended: Latch, token: _Token) -> None:
    del token  # the caller of this function still refers to it, until the thread ends
    begun.set()
    _this_thread.is_started = True
    # As threading.Thread does, for profilers and debuggers.
    sys.settrace(threading.gettrace())
    sys.setprofile(threading.getprofile())
    try:
        function()
    finally:
        ended.set()
