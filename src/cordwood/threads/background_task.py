"""A function that a thread calls whenever it was requested; requests during a call count as one."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

from cordwood.threads.latch import Latch
from cordwood.threads.started_thread import StartedThread
from cordwood.threads.stop_check import POLL_SECONDS, StoppedError, stop_check

_EXIT_SECONDS = 5.0  # for a call that is stopped while the interpreter exits

_running: dict[BackgroundTask, None] = {}  # changed and copied by single operations


class BackgroundTask:
    """A function that runs in the background, one call at a time.

    However often it is requested during a call, one more call follows: work that is slower than its
    requests does not pile up. The interpreter does not wait for it: a call that runs at the exit is
    stopped.

    Args:
        function: what is called. It ends with StoppedError if it is stopped (`check_stop`), and
            should raise nothing else.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._lock = threading.Lock()  # never held by the main thread
        self._is_requested = False
        self._is_stopped = False
        self._thread: StartedThread | None = None
        self._ended: Latch | None = None  # set once the thread has ended

    def request(self) -> None:
        """Let the function be called, once more if it is running; not in the main thread.

        Raises RuntimeError or MemoryError if no more threads are possible.
        """
        with self._lock:
            self._is_requested = True
            if not self.is_idle:
                return
            self._ended = Latch()
            _running[self] = None
            try:
                self._thread = StartedThread(self._run)
            except BaseException:
                self._is_requested = False
                self._ended.set()
                _running.pop(self, None)
                raise

    def stop(self) -> None:
        """Let the running call end at its next `check_stop`; not in the main thread."""
        with self._lock:
            self._is_requested, self._is_stopped = False, True

    @property
    def is_idle(self) -> bool:
        """True if no call is running or requested."""
        if self._ended is None or self._ended.is_set:
            return True
        return self._thread is not None and not self._thread.is_alive  # there was no memory for it

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the task is idle; return False after the timeout."""
        end = time.monotonic() + timeout_seconds
        while not self.is_idle:
            seconds = min(POLL_SECONDS, end - time.monotonic())
            if seconds <= 0:
                return False
            if self._ended is not None:
                self._ended.wait(seconds)
        return True

    def _run(self) -> None:
        with stop_check(self._check):
            while self._takes_request():
                try:
                    self._function()
                except StoppedError:
                    continue

    def _takes_request(self) -> bool:
        with self._lock:
            if not self._is_requested:
                assert self._ended is not None
                self._ended.set()
                _running.pop(self, None)
                return False
            self._is_requested, self._is_stopped = False, False
            return True

    def _check(self) -> None:
        if self._is_stopped:
            raise StoppedError


def _stop_at_exit() -> None:
    tasks = list(_running)
    for task in tasks:
        task.stop()
    for task in tasks:
        task.wait(_EXIT_SECONDS)


atexit.register(_stop_at_exit)
os.register_at_fork(after_in_child=_running.clear)
