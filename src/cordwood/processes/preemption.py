"""The notice that a job is to end soon: SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Any

_listening: tuple[weakref.ref[Notice], ...] = ()  # one that nobody has any more listens no more


class Notice:
    """Takes note of SIGTERM instead of ending at once.

    Attributes:
        since: when it came, by the monotonic clock; None: it has not.
    """

    def __init__(self) -> None:
        self.since: float | None = None

    def listen(self) -> None:
        """Take note from now on; a handler that was there is still called.

        Raises RuntimeError in any other thread than the main one, as Python has it.
        """
        global _listening
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a notice of SIGTERM can only be taken in the main thread")
        _listening = (*_listening, weakref.ref(self))
        if not isinstance(signal.getsignal(signal.SIGTERM), _Handler):
            handler = _Handler()
            handler.before = signal.signal(signal.SIGTERM, handler)

    def stop(self) -> None:
        """Take note no more. The last to stop leaves SIGTERM to whoever had it before."""
        global _listening
        _listening = tuple([each for each in _listening if each() not in (None, self)])
        handler = signal.getsignal(signal.SIGTERM)
        if _listening or not isinstance(handler, _Handler):
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler.before or signal.SIG_DFL)

    def pass_on(self) -> None:
        """Once it has stopped: end as SIGTERM would have, had nobody kept it from that."""
        if self.since is not None and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)


class _Handler:
    """What is in place while anybody listens, or something else was put over it."""

    def __init__(self) -> None:
        self.before: Any = None  # None, too: a handler that is not Python's

    def __call__(self, number: int, frame: FrameType | None) -> None:
        heard = [notice for each in _listening if (notice := each()) is not None]
        for notice in heard:
            if notice.since is None:
                notice.since = time.monotonic()
        if callable(self.before):
            self.before(number, frame)
        elif not heard and self.before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
