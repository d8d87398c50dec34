"""A queue of work after commits, such as deletions: one at a time, in the order of the saves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cordwood.io.background_save import PendingSave


class PostCommitQueue:
    """The work after the saves of one manager; each runs in the thread of its save."""

    def __init__(self) -> None:
        self._last: threading.Event | None = None  # set once the work after the last save is done
        self._before: threading.Event | None = None  # the same for the save before the last
        self._threads: set[int] = set()  # threads that do such work, or wait for their turn

    def run(self, pending: PendingSave, work: Callable[[], None]) -> None:
        """Mark a save as succeeded, then do its work; called in the thread of the save."""
        done, thread = threading.Event(), threading.get_ident()
        before = self._last
        self._before, self._last = before, done
        self._threads.add(thread)
        pending._end()
        try:
            if before is not None:
                before.wait()
            work()
        finally:
            self._threads.discard(thread)
            done.set()

    def limit_backlog(self) -> None:
        """Wait for all such work but the last, so that work slower than saving cannot pile up."""
        self._wait(self._before, None)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for all such work; return False on timeout. Called by such work, return at once."""
        return self._wait(self._last, timeout_seconds)

    def _wait(self, done: threading.Event | None, timeout_seconds: float | None) -> bool:
        if done is None or threading.get_ident() in self._threads:
            return True
        return done.wait(timeout_seconds)
