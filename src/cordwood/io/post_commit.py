"""What is done after saves have ended, one after another in the order of their ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cordwood.io.background_save import PendingSave


class PostCommitQueue:
    """The work that follows the saves of one owner, each in the thread of its save."""

    def __init__(self) -> None:
        self._last: threading.Event | None = None  # set once the work that came last is done
        self._before: threading.Event | None = None  # that of the save before
        self._threads: set[int] = set()  # that do it, or wait for their turn

    def run(self, pending: PendingSave, work: Callable[[], None]) -> None:
        """End a save well, and do what follows it; for its thread."""
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
        """Wait for all such work but the last: what is slower than saving does not add up."""
        self._wait(self._before, None)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for all such work; False where it is not done then. Such work itself does not."""
        return self._wait(self._last, timeout_seconds)

    def _wait(self, done: threading.Event | None, timeout_seconds: float | None) -> bool:
        if done is None or threading.get_ident() in self._threads:
            return True
        return done.wait(timeout_seconds)
