"""What one process has made, looked for by the others: do they see the same file system?"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["comes_in_sight"]

_LOOK_SECONDS = 0.05


def comes_in_sight(is_there: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Whether something is there, or comes there in that time."""
    deadline = time.monotonic() + timeout_seconds
    while not is_there():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)  # a network file system may remember that it was not there
    return True
