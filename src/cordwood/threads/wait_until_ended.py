"""A wait for a thread that Ctrl-C always ends."""

from __future__ import annotations

import threading

_POLL_SECONDS = 0.5


def wait_until_ended(thread: threading.Thread) -> None:
    """Wait until a thread has ended; a signal handler of Python runs meanwhile.

    A `join` without a time-out may miss a signal: Python's handlers run in the main thread, and
    nothing wakes it if the signal comes just before it sleeps, or to another thread.
    """
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
