"""What one process has made, looked for by the others: do they see the same file system?"""

from __future__ import annotations

import time
from collections.abc import Callable

from cordwood.processes.wait_log import WaitLogger

_LOOK_SECONDS = 0.05


def wait_until_visible(is_there: Callable[[], bool], mark: str, *, timeout_seconds: float) -> bool:
    """Return whether `mark`, which another process has made, is there or comes there in that time.

    A network file system may remember for a while that it was not there.
    """
    waiting = WaitLogger(f"{mark}, which process 0 has made, to be seen by this process")
    while not is_there():
        if waiting.seconds >= timeout_seconds:
            return False
        waiting.tick()
        time.sleep(_LOOK_SECONDS)
    waiting.end()
    return True
