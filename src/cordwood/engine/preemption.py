"""The notice that a job is to end soon: SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

__all__ = ["Notice"]


class Notice:
    """Takes note of SIGTERM instead of ending at once.

    Attributes:
        since: when it came, by the monotonic clock; None: it has not.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._before: Any = None
        self._listening = False

    def listen(self) -> None:
        """Take note from now on; a handler that was there is still called.

        Raises RuntimeError in any other thread than the main one, as Python has it.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a notice of SIGTERM can only be taken in the main thread")
        self._before = signal.signal(signal.SIGTERM, self._note)
        self._listening = True

    def stop(self) -> None:
        """Leave SIGTERM to whoever had it before."""
        if not self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = False
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.since is None:
            self.since = time.monotonic()
        if callable(self._before):
            self._before(number, frame)
