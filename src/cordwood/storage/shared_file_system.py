"""A wait until a file of another process is visible: a test for a shared file system."""

from __future__ import annotations

import time
from collections.abc import Callable

from cordwood.processes.coordination import WaitLogger

_LOOK_SECONDS = 0.05


def wait_until_visible(is_there: Callable[[], bool], mark: str, *, timeout_seconds: float) -> bool:
    """Wait until `mark`, which another process has created, exists; return False on timeout.

    A network file system may cache for a while that it does not exist.
    """
    waiting = WaitLogger(f"{mark}, which process 0 has made, to be seen by this process")
    while not is_there():
        if waiting.seconds >= timeout_seconds:
            return False
        waiting.tick()
        time.sleep(_LOOK_SECONDS)
    waiting.end()
    return True
