"""The work after the commits of a manager, such as deletions, in the order of its saves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cordwood.saving.background_saves import PendingSave
from cordwood.threads.latch import Latch
from cordwood.threads.stop_check import POLL_SECONDS, check_stop


class PostCommitQueue:
    """The work after the saves of one manager; each runs in the thread of its save."""

    def __init__(self) -> None:
        self._last: Latch | None = None  # set once the work after the last save is done
        self._before: Latch | None = None  # the same for the save before the last
        self._threads: set[int] = set()  # threads that do such work, or wait for their turn

    def run(self, pending: PendingSave, work: Callable[[], None]) -> None:
        """Mark a save as succeeded, then do its work; called in the thread of the save."""
        done, thread = Latch(), threading.get_ident()
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

    @property
    def is_in_this_thread(self) -> bool:
        """True if such work calls this."""
        return threading.get_ident() in self._threads

    def limit_backlog(self) -> None:
        """Wait for all such work but the last, so that work slower than saving cannot pile up.

        Raises what `check_stop` raises.
        """
        while not self._wait(self._before, POLL_SECONDS):
            check_stop()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for all such work; return False on timeout. Called by such work, return at once."""
        return self._wait(self._last, timeout_seconds)

    def _wait(self, done: Latch | None, timeout_seconds: float | None) -> bool:
        if done is None or self.is_in_this_thread:
            return True
        return done.wait(timeout_seconds)
