"""Saves in the background, one after another in the order of the calls, and the work after them.

Each has a thread of its own, which waits for the save before it. It is not a daemon thread: the
interpreter joins it before it exits, so every save that was started ends. The work after the
commits of a manager, such as deletions, is done one at a time in the order of its saves.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable

from cordwood.errors import PendingSaveError
from cordwood.io.progress import Progress
from cordwood.io.threads import run_in_worker

_log = logging.getLogger("cordwood")

_HEAD_START_SECONDS = 0.02
NOTHING_STARTED = "Nothing was begun now: save again"
SAVE_STARTED_ANYWAY = "The save that was called now was begun all the same"


class PendingSave:
    """A save in the background; `cordwood.save_async` returns it.

    Attributes:
        path: where it saves to.
        begun_seconds: by `time.monotonic`, when `save_async` returned to its caller.
    """

    def __init__(self, path: str, target: str, total_bytes: int) -> None:
        self.path = path
        self.begun_seconds = time.monotonic()
        # A manager that owns it reports its failure; the next save of something else does not.
        self._has_owner = False
        self._target = target  # the real path: the same for all names of one path
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """True once the save has ended, whether it succeeded or failed."""
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        """True if the save failed.

        Unlike `exception` and `wait`, reading it does not mark the failure as reported.
        """
        return self.done and self._error is not None

    @property
    def _has_unreported_failure(self) -> bool:
        """True if the save failed and the failure has not been reported."""
        with _lock:
            return self in _unreported

    @property
    def exception(self) -> BaseException | None:
        """The exception of a save that failed; None while it runs and once it has succeeded."""
        if not self.done:
            return None
        _mark_reported(self)
        return self._error

    @property
    def progress(self) -> Progress:
        """The bytes of the tree that have been taken up for writing, and the total."""
        return Progress(self._done_bytes, self._total_bytes)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until the checkpoint is committed: then a power cut cannot lose it.

        Ctrl-C ends the wait but not the save: the interpreter does not exit before the save has
        ended, whether it succeeds or fails, and logs a warning that says so. Another Ctrl-C during
        the exit gives the save up; the old checkpoint then stays.

        Raises:
            TimeoutError: the save has not ended within that time; it continues.
            Exception: whatever `save` would have raised; nothing was committed.
        """
        try:
            ended = self._ended.wait(timeout_seconds)
        except KeyboardInterrupt:
            _log.warning(
                "%s: no longer waited for, and still being saved: the interpreter does not exit "
                "before that has ended; Ctrl-C again, at the exit, gives it up",
                self.path,
            )
            raise
        if not ended:
            raise TimeoutError(
                f"{self.path}: still being saved after {timeout_seconds:g} s "
                f"({self._done_bytes} of {self._total_bytes} bytes); it goes on"
            )
        _mark_reported(self)
        if self._error is not None:
            raise self._error

    def _wait_quietly(self) -> None:
        """Wait until the save has ended; raise nothing, and do not mark a failure as reported."""
        self._ended.wait()

    def _end(self, error: BaseException | None = None) -> None:
        """Mark the save as ended, even if its thread continues; only the first call counts."""
        with _lock:
            if self._ended.is_set():
                return
            self._error = error
            if self in _running:
                _running.remove(self)
            if error is not None:
                _unreported.append(self)
            self._ended.set()

    def _advance(self, count: int) -> None:
        """Count bytes as done; called by the thread that saves."""
        with self._lock:
            self._done_bytes += count

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "saved" if self.done else "saving"
        return f"<{state} {self.path}: {self._done_bytes} of {self._total_bytes} bytes>"


_MAX_SHOWN = 5
_lock = threading.Lock()  # of the two that follow
_running: list[PendingSave] = []  # in the order of the calls
_unreported: list[PendingSave] = []  # failed, and the failure has not been reported


def save_in_background(
    path: str | os.PathLike[str], work: Callable[[PendingSave], None], *, total_bytes: int
) -> PendingSave:
    """Call `work` in a thread, after all background saves started before; keep its exception.

    Once the main thread has ended, as in an `atexit` handler, the interpreter no longer waits for
    threads: then `work` is called before this returns, and its exception is raised here.

    Args:
        path: the path of the checkpoint.
        work: saves. It may call `_advance` on its argument, and `_end` if work remains to be done
            after the commit.
        total_bytes: the size of the tree.
    """
    pending = PendingSave(os.fspath(path), os.path.realpath(path), total_bytes)
    caller_goes = threading.Event()

    def run(earlier: PendingSave | None, job: list[Callable[[PendingSave], None]]) -> None:
        # Otherwise the caller would wait for the GIL, 5 ms at a time, while this thread plans. If
        # an interrupt has kept the caller from setting the event, the timeout ends this wait.
        caller_goes.wait(_HEAD_START_SECONDS)
        if earlier is not None:
            earlier._wait_quietly()
        del earlier
        error: BaseException | None = None
        try:
            job.pop()(pending)
        except BaseException as e:  # noqa: BLE001  (kept until it is reported)
            error = e
        pending._end(error)

    if not threading.main_thread().is_alive():
        run_in_worker(lambda: work(pending))
        pending._end()
        return pending

    with _lock:
        earlier = _running[-1] if _running else None
        thread = threading.Thread(
            target=run, args=(earlier, [work]), name=f"cordwood-save-{pending.path}", daemon=False
        )
        _running.append(pending)
        started = []

        def start() -> None:
            thread.start()
            started.append(True)

        try:
            run_in_worker(start)  # an interrupt in `Thread.start` would not tell whether it runs
        except BaseException:
            if not started:
                _running.remove(pending)
            raise
    caller_goes.set()
    return pending


def wait_for_saves(path: str | os.PathLike[str]) -> None:
    """Wait for the background saves to `path` that have not ended; their failures stay pending."""
    target = os.path.realpath(path)
    with _lock:
        same = [pending for pending in _running if pending._target == target]
    for pending in same:
        pending._wait_quietly()


def raise_unreported_failures(*, save_started: bool = False) -> None:
    """Raise PendingSaveError if background saves failed and that was not reported; only once.

    Args:
        save_started: True if the caller has already started its own save.
    """
    with _lock:
        failed = [pending for pending in _unreported if not pending._has_owner]
        _unreported[:] = [pending for pending in _unreported if pending._has_owner]
    if failed:
        raise PendingSaveError(
            f"{_failures(failed)}; that is told now because nobody called wait(). "
            + (SAVE_STARTED_ANYWAY if save_started else NOTHING_STARTED)
        ) from failed[0]._error


def _mark_reported(pending: PendingSave) -> None:
    with _lock:
        if pending in _unreported:
            _unreported.remove(pending)


def _failures(failed: list[PendingSave]) -> str:
    shown = [
        f"the save of {pending.path} in the background failed: "
        f"{type(pending._error).__name__}: {pending._error}"
        for pending in failed[:_MAX_SHOWN]
    ]
    more = [f"and {len(failed) - _MAX_SHOWN} more"] if len(failed) > _MAX_SHOWN else []
    return "; ".join([*shown, *more])


def _warn_at_exit() -> None:
    if _unreported:
        warnings.warn(f"cordwood: {_failures(_unreported)}", RuntimeWarning, stacklevel=1)


def _forget() -> None:
    """Reset the state in a forked child, which has none of the threads."""
    global _lock
    _lock = threading.Lock()
    _running.clear()
    _unreported.clear()


atexit.register(_warn_at_exit)
os.register_at_fork(after_in_child=_forget)


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
