"""All threads in which cordwood reads and writes: of a call, of its tasks, of background saves.

Python raises KeyboardInterrupt between any two steps of the main thread, also inside a `finally`
block: descriptors and locks would be lost. So every call that changes files does that in another
thread (`run_in_worker`), which no interrupt reaches. It ends at the next point where it calls
`check_stop`; only then the interrupt is raised.

Saves in the background run one after another in the order of the calls. Each has a thread of its
own, which waits for the save before it. It is not a daemon thread: the interpreter joins it before
it exits, so every save that was started ends. The work after the commits of a manager, such as
deletions, is done one at a time in the order of its saves.

One file, because what an interrupt or the exit of the interpreter does to each thread belongs
together.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from cordwood.errors import PendingSaveError
from cordwood.io.progress import Progress

T = TypeVar("T")
U = TypeVar("U")
StopCheck: TypeAlias = Callable[[], None]  # raises an exception to end the work that calls it

_log = logging.getLogger("cordwood")

_POLL_SECONDS = 0.05
_WAITING_THREADS = 16
_TRANSFER_THREADS = 8


class StoppedError(BaseException):
    """An interrupt of the main thread; `run_in_worker` raises that interrupt in its place."""

    def __str__(self) -> str:
        return "it was interrupted"  # this text is sent to the other processes


def run_in_worker(function: Callable[[], T]) -> T:
    """Call a function that no interrupt cuts in two; return its result, or raise its exception.

    In the main thread, the function is called in another thread, with the same context variables.
    After an interrupt (Ctrl-C, or an exception of a signal handler) its `check_stop` raises
    StoppedError; once the function has ended, the interrupt is raised here. In any other thread it
    is called directly: there are no interrupts there.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function()
    run = _Run(function)
    interrupt: BaseException | None = None
    started = False
    while True:
        try:
            if interrupt is not None:
                run.stop()
            elif not started:
                started = True
                if not run.start():
                    return function()
            run.wait()
            break
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            interrupt = e
    if interrupt is not None:
        raise interrupt
    return run.result()


def check_stop() -> None:
    """Raise the exception that ends the work of this thread, if it must stop.

    That is StoppedError after an interrupt of the main thread, and ProcessError in a rendezvous of
    which another process has failed. Long work calls this wherever it can end.
    """
    _stop_check.get()()


def current_stop_check() -> StopCheck:
    """Return the function that `check_stop` calls now."""
    return _stop_check.get()


@contextmanager
def stop_check(check: StopCheck) -> Iterator[None]:
    """Let `check_stop` call `check` in the block."""
    token = _stop_check.set(check)
    try:
        yield
    finally:
        _stop_check.reset(token)


def never_stop() -> None:
    """Do nothing: the stop check of work that is never stopped, such as the removal of files."""


_stop_check: ContextVar[StopCheck] = ContextVar("stop_check", default=never_stop)


class _Run(Generic[T]):
    """A call in another thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = copy_context()
        self._lock = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._stopped = False
        self._started = False
        self._over = False
        self._values: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> bool:
        """Start the thread; return False if no more threads are possible."""
        try:
            # Not threading.Thread: an interrupt in its `start` leaves it in an undefined state.
            _thread.start_new_thread(self._body, ())
        except RuntimeError:
            return False
        return True

    def _body(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._started = True
        try:
            # As threading.Thread does, for profilers and debuggers.
            sys.settrace(threading.gettrace())
            sys.setprofile(threading.getprofile())
            self._values.append(self._context.run(self._call))
        except BaseException as e:  # noqa: BLE001  (handed to the main thread)
            self._error = e
        finally:
            del self._function, self._context  # what they hold does not outlive the call
            self._over = True
            self._ended.release()

    def _call(self) -> T:
        with stop_check(self._check):
            return self._function()

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._over = self._over or not self._started

    def wait(self) -> None:
        """Wait until the call has ended, or will never start."""
        while not self._over:
            self._ended.acquire(timeout=_POLL_SECONDS)

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._values.pop()
        try:
            raise error
        finally:
            error = None  # breaks the cycle of the exception and this frame


def default_threads() -> int:
    """Return the number of cores that this process may use, but at most four."""
    return min(4, len(os.sched_getaffinity(0)))


def reading_threads(*, latency_bound: bool) -> int:
    """Return the number of threads to read files with: more if reads wait for a network."""
    return _WAITING_THREADS if latency_bound else default_threads()


def transfer_threads() -> int:
    """Return the number of threads to read what is sent to accelerators.

    One thread copies 3 to 5 GB/s out of the page cache; the link of an accelerator takes 25 to 60.
    """
    return min(_TRANSFER_THREADS, len(os.sched_getaffinity(0)))


def run_tasks(
    count: int, *, threads: int, make_worker: Callable[[], Callable[[int], None]]
) -> None:
    """Call workers with the numbers of range(count), in order, in up to `threads` threads.

    Each thread makes its own worker, with buffers of its own, and has the context variables of the
    caller: its progress meter and its stop check. After the first exception no further
    task starts; the exception is raised here once every thread has ended.
    """
    lock = threading.Lock()
    following = 0
    running = 0  # tasks that helper threads are working on
    pause = threading.Lock()  # locked, except for a moment whenever `running` reaches 0
    pause.acquire()
    failure: BaseException | None = None
    stopped = False  # True once there was a failure; unlike `failure` it is never reset

    def take(helping: int) -> int | None:
        nonlocal following, running
        with lock:
            if stopped or following >= count:
                return None
            following += 1
            running += helping
            return following - 1

    def finish() -> None:
        nonlocal running
        with lock:
            running -= 1
            if not running and pause.locked():
                pause.release()

    def fail(error: BaseException) -> None:
        nonlocal failure, stopped
        with lock:
            stopped = True
            if failure is None:
                failure = error

    outer_check = current_stop_check()

    def check() -> None:
        if stopped:  # by a failure, or Ctrl-C, of another thread
            raise StoppedError
        outer_check()

    def help_out() -> None:
        _stop_check.set(check)
        try:
            worker = make_worker()
            while (task := take(1)) is not None:
                try:
                    worker(task)
                except BaseException as e:  # noqa: BLE001  (handed to the caller below)
                    fail(e)
                finally:
                    finish()
        except BaseException as e:  # noqa: BLE001
            fail(e)

    def wait() -> None:
        # Not Thread.join: after Ctrl-C in it the thread seems to have ended while it still writes.
        # A helper that has not taken a task yet will get none.
        while running:
            pause.acquire(timeout=0.05)

    try:
        for _ in range(min(threads, count) - 1):
            try:
                helper = partial(copy_context().run, help_out)
                threading.Thread(target=helper, name="cordwood-io", daemon=True).start()
            except RuntimeError:  # no more threads are possible: this thread does the rest
                break
        worker = make_worker()
        while (task := take(0)) is not None:
            worker(task)
    except BaseException as e:  # noqa: BLE001  (Ctrl-C among them)
        fail(e)
    while True:
        try:
            wait()
            break
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            fail(e)
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # breaks the cycle of the exception, its frames and this closure


def map_in_threads(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, threads: int = 0
) -> list[T]:
    """Return the results of a function for each tuple of arguments, in their order.

    It is called in several threads, and should do most of its work without the GIL. After an
    exception no further call starts; the exception is raised here. 0 threads: `default_threads`.
    """
    results: dict[int, T] = {}

    def work(number: int) -> None:
        results[number] = function(*arguments[number])

    run_tasks(len(arguments), threads=threads or default_threads(), make_worker=lambda: work)
    return [results[number] for number in range(len(arguments))]


def together(first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    """Return the results of two functions, which are called at the same time.

    If one raises, the exception is raised here once both have ended.
    """
    calls: list[tuple[Callable[[], Any]]] = [(first,), (second,)]
    one, other = map_in_threads(lambda call: call(), calls, threads=2)
    return one, other


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block, and restore its state after it.

    Reading an index of 20,000 leaves creates 100,000 tuples, none of them garbage. The collector
    would traverse them, and all other objects of the process, again and again: half of the time of
    a read.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Saves in the background

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
            if error is not None and not self._is_given_up:
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
