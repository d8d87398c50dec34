"""Saves in the background: their threads, their failures, and the exit of the interpreter.

They run one after another in the order of the calls. Each has a thread of its own, which waits for
the save before it. The interpreter waits for them before it exits, so every save that was started
ends.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from cordwood.errors import PendingSaveError
from cordwood.io.progress import Progress
from cordwood.threads.forked_error import forked_error
from cordwood.threads.latch import Latch
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.started_thread import StartedThread, no_memory_error
from cordwood.threads.stop_check import POLL_SECONDS, check_stop

_DEATH_SECONDS = 0.5  # between two looks if a thread for which one waits still exists
_HEAD_START_SECONDS = 0.02
NOTHING_STARTED = "Nothing was begun now: save again"
SAVE_STARTED_ANYWAY = "The save that was called now was begun all the same"


class PendingSave:
    """A save in the background; `cordwood.save_async` returns it.

    Attributes:
        path: where it saves to.
        begun_seconds: by `time.monotonic`, when the caller could change the tree again.
    """

    def __init__(self, path: str, target: str, total_bytes: int) -> None:
        self.path = path
        self.begun_seconds = time.monotonic()
        # A manager that owns it reports its failure; the next save of something else does not.
        self._has_owner = False
        self._is_given_up = False  # its caller was interrupted, and knows that nothing is saved
        self._target = target  # the real path: the same for all names of one path
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._process = os.getpid()
        self._ended = Latch()
        self._caller_goes = Latch()
        self._thread: StartedThread | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """True once the save has ended, whether it succeeded or failed."""
        return self._ended.is_set

    @property
    def failed(self) -> bool:
        """True if the save failed.

        Unlike `exception` and `wait`, reading it does not mark the failure as reported.
        """
        return self.done and self._error is not None

    @property
    def _has_unreported_failure(self) -> bool:
        """True if the save failed and the failure has not been reported."""
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
            StorageError: this process was forked from the one that saves.
            Exception: whatever `save` would have raised; nothing was committed.
        """
        try:
            ended = self._wait(timeout_seconds)
        except KeyboardInterrupt:
            log.warning(
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
        """Wait until the save has ended; do not raise or mark its failure as reported.

        Raises what `check_stop` raises.
        """
        while not self._wait(POLL_SECONDS):
            check_stop()

    def _wait(self, timeout_seconds: float | None) -> bool:
        """Wait until the save has ended; return False after the timeout."""
        if not self._ended.is_set and os.getpid() != self._process:
            raise forked_error(f"the save of {self.path}", self._process)
        self._let_begin()
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._ended.is_set:
            left_seconds = _DEATH_SECONDS if end is None else end - time.monotonic()
            if left_seconds <= 0:
                return False
            if self._ended.wait(min(left_seconds, _DEATH_SECONDS)):
                break
            if self._thread is not None and not self._thread.is_alive:
                self._end(no_memory_error())  # without effect if it ended just now
        return True

    def _let_begin(self) -> None:
        """Let the save take the processor: its caller has what it needs, or waits."""
        self._caller_goes.set()

    def _end(self, error: BaseException | None = None) -> None:
        """Mark the save as ended, even if its thread continues; only the first call counts."""
        if self._ended.is_set:
            return
        self._error = error
        if error is not None and not self._is_given_up:
            _unreported[self] = None
        self._ended.set()
        _running.pop(self, None)

    def _advance(self, count: int) -> None:
        """Count bytes as done; called by the thread that saves."""
        with self._lock:
            self._done_bytes += count

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "saved" if self.done else "saving"
        return f"<{state} {self.path}: {self._done_bytes} of {self._total_bytes} bytes>"


_MAX_SHOWN = 5
_queueing = threading.Lock()  # held while a save is queued, never by the main thread
# In the order of the calls. They are changed and copied by single operations, which need no lock.
_running: dict[PendingSave, None] = {}
_unreported: dict[PendingSave, None] = {}  # failed, and the failure has not been reported
_threads: dict[StartedThread, None] = {}  # of saves, and of the work after their commits
_is_given_up_at_exit = False


def save_in_background(
    path: str | os.PathLike[str], work: Callable[[PendingSave], None], *, total_bytes: int
) -> PendingSave:
    """Call `work` in a thread, after all background saves started before; keep its exception.

    Once the main thread has ended, as in an `atexit` handler, the interpreter no longer waits for
    threads: then `work` is called before this returns, and its exception is raised here. So it is
    if no more threads are possible.

    Args:
        path: the path of the checkpoint.
        work: saves. It may call `_advance` on its argument, and `_end` if work remains to be done
            after the commit.
        total_bytes: the size of the tree.

    The save begins once the caller calls `_let_begin` or waits for it, or a moment later.

    Raises MemoryError if there is no memory for the thread.
    """
    pending = PendingSave(os.fspath(path), os.path.realpath(path), total_bytes)
    if not threading.main_thread().is_alive() or not run_in_worker(lambda: _queue(pending, work)):
        run_in_worker(lambda: work(pending))
        pending._end()
    return pending


def _queue(pending: PendingSave, work: Callable[[PendingSave], None]) -> bool:
    """Start the thread of a save; return False if no more threads are possible."""

    def run(earlier: PendingSave | None, job: list[Callable[[PendingSave], None]]) -> None:
        # Otherwise the caller would wait for the GIL, 5 ms at a time, while this thread plans. If
        # an interrupt has kept the caller from `_let_begin`, the timeout ends this wait.
        pending._caller_goes.wait(_HEAD_START_SECONDS)
        if earlier is not None:
            earlier._wait_quietly()
        del earlier
        error: BaseException | None = None
        try:
            job.pop()(pending)
        except BaseException as e:  # noqa: BLE001  (kept until it is reported)
            error = e
        pending._end(error)
        if pending._thread is not None:
            _threads.pop(pending._thread, None)

    with _queueing:
        running = list(_running)
        earlier = running[-1] if running else None
        _running[pending] = None
        try:
            pending._thread = StartedThread(partial(run, earlier, [work]))
            _threads[pending._thread] = None
            pending._thread.wait_until_begun()
        except RuntimeError:
            _running.pop(pending, None)
            return False
        except BaseException:
            _running.pop(pending, None)
            raise
    return True


def wait_for_saves(path: str | os.PathLike[str]) -> None:
    """Wait for the background saves to `path` that have not ended; their failures stay pending."""
    target = os.path.realpath(path)
    for pending in list(_running):
        if pending._target == target:
            pending._wait_quietly()


def raise_unreported_failures(*, save_started: bool = False) -> None:
    """Raise PendingSaveError if background saves failed and that was not reported; only once.

    Args:
        save_started: True if the caller has already started its own save.
    """
    failed = [
        pending
        for pending in list(_unreported)
        if not pending._has_owner and _mark_reported(pending)
    ]
    if failed:
        raise PendingSaveError(
            f"{_failures(failed)}. This was not reported earlier because wait() was not called. "
            + (SAVE_STARTED_ANYWAY if save_started else NOTHING_STARTED)
        ) from failed[0]._error


def _mark_reported(pending: PendingSave) -> bool:
    """Mark a failure as reported; return False if there is none, or it was reported before."""
    return _unreported.pop(pending, _NEVER) is None


_NEVER = object()


def _failures(failed: Sequence[PendingSave]) -> str:
    shown = [
        f"the save of {pending.path} in the background failed: "
        f"{type(pending._error).__name__}: {pending._error}"
        for pending in failed[:_MAX_SHOWN]
    ]
    more = [f"and {len(failed) - _MAX_SHOWN} more"] if len(failed) > _MAX_SHOWN else []
    return "; ".join([*shown, *more])


def _wait_at_exit() -> None:
    """Wait for all saves, as the interpreter waits for threads; an interrupt gives them up."""
    global _is_given_up_at_exit
    try:
        while not _is_given_up_at_exit and (threads := list(_threads)):
            threads[0].wait()
            _threads.pop(threads[0], None)
    except BaseException:
        _is_given_up_at_exit = True
        raise


def _warn_at_exit() -> None:
    if _unreported:
        message = f"cordwood: {_failures(list(_unreported))}"
        warnings.warn(message, RuntimeWarning, stacklevel=1)


def _forget() -> None:
    """Reset the state in a forked child, which has none of the threads."""
    global _queueing
    _queueing = threading.Lock()
    _running.clear()
    _unreported.clear()
    _threads.clear()


atexit.register(_warn_at_exit)
atexit.register(_wait_at_exit)  # called before the other one, for saves that began at the exit
with suppress(KeyError, RuntimeError):  # RuntimeError: the interpreter exits already
    # Before all that is registered with atexit, which may use the checkpoints.
    vars(threading)["_register_atexit"](_wait_at_exit)
os.register_at_fork(after_in_child=_forget)
