"""The preemption notice, by which a job learns that it has to end soon: SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Any

_listening: tuple[weakref.ref[PreemptionNotice], ...] = ()  # those that are still referred to


class PreemptionNotice:
    """A receiver of SIGTERM, which keeps the signal from ending the process at once.

    Attributes:
        received_at: when SIGTERM came, by the monotonic clock; None if it has not come.
    """

    def __init__(self) -> None:
        self.received_at: float | None = None

    def listen(self) -> None:
        """Receive SIGTERM from this call on; an earlier handler is still called.

        Raises RuntimeError outside the main thread, where Python does not allow it.
        """
        global _listening
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a notice of SIGTERM can only be taken in the main thread")
        _listening = (*_listening, weakref.ref(self))
        if not isinstance(signal.getsignal(signal.SIGTERM), _SignalHandler):
            handler = _SignalHandler()
            handler.before = signal.signal(signal.SIGTERM, handler)

    def stop(self) -> None:
        """Stop receiving. The last receiver that stops restores the earlier handler."""
        global _listening
        _listening = tuple([each for each in _listening if each() not in (None, self)])
        handler = signal.getsignal(signal.SIGTERM)
        if _listening or not isinstance(handler, _SignalHandler):
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler.before or signal.SIG_DFL)

    def resend(self) -> None:
        """End the process, after `stop`, as a received SIGTERM would have by default."""
        if self.received_at is not None and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)


class _SignalHandler:
    """The signal handler, which stays installed while any notice listens.

    It stays installed longer if another handler was installed over it.
    """

    def __init__(self) -> None:
        self.before: Any = None  # the earlier handler; None, too, for one that is not Python's

    def __call__(self, number: int, frame: FrameType | None) -> None:
        notices = [notice for each in _listening if (notice := each()) is not None]
        for notice in notices:
            if notice.received_at is None:
                notice.received_at = time.monotonic()
        if callable(self.before):
            self.before(number, frame)
        elif not notices and self.before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
