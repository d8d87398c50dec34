"""All threads in which cordwood reads and writes: of a call, of its tasks, of background saves.

Python raises KeyboardInterrupt between any two steps of the main thread, also inside a `finally`
block: descriptors and locks would be lost. So every call that changes files does that in another
thread (`run_in_worker`), which no interrupt reaches. It ends at the next point where it calls
`check_stop`; only then the interrupt is raised.

Signal handlers run between any two steps of the main thread, too, and may save. So the main thread
holds no lock, and no half-made import, that another thread needs: the whole call runs in the other
thread, and the main thread waits for it (docs/design/0015-signal-handlers.md).

Saves in the background run one after another in the order of the calls. Each has a thread of its
own, which waits for the save before it. The interpreter waits for them before it exits, so every
save that was started ends. The work after the commits of a manager, such as deletions, is done one
at a time in the order of its saves.

One file, because what an interrupt or the exit of the interpreter does to each thread belongs
together.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from cordwood.errors import PendingSaveError, StorageError
from cordwood.io.latch import Latch
from cordwood.io.log import log
from cordwood.io.progress import Progress
from cordwood.io.started_thread import StartedThread, is_started_thread, no_memory_error

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")
StopCheck: TypeAlias = Callable[[], None]  # raises an exception to end the work that calls it


_POLL_SECONDS = 0.05
_DEATH_SECONDS = 0.5  # between two looks if a thread for which one waits still exists
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
    is called directly: there are no interrupts there. So it is if no more threads are possible.

    A signal handler may call this, too, while the main thread is in a call of it. The handler's
    function then runs in one more thread, beside the one that was interrupted.

    Raises MemoryError if there is no memory for the thread.
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
        try:
            raise interrupt
        finally:
            del interrupt, run  # or a cycle with the traceback keeps a result, and its files, open
    return run.result()


def in_worker(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function run in a worker: the decorator of public functions that change files."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return run_in_worker(partial(function, *arguments, **named))

    return call


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
        self._over = Latch()
        self._stopped = False
        self._started = False
        self._thread: StartedThread | None = None
        self._values: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> bool:
        """Start the thread; return False if no more threads are possible."""
        try:
            self._thread = StartedThread(self._body)
        except RuntimeError:
            return False
        return True

    def _body(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._started = True
        try:
            self._values.append(self._context.run(self._call))
        except BaseException as e:  # noqa: BLE001  (handed to the main thread)
            self._error = e
        finally:
            del self._function, self._context  # what they hold does not outlive the call
            self._over.set()

    def _call(self) -> T:
        with stop_check(self._check):
            return self._function()

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if not self._started:
                self._over.set()

    def wait(self) -> None:
        """Wait until the call has ended, or will never start."""
        while not self._over.wait(_POLL_SECONDS):
            thread = self._thread
            if thread is not None and not thread.is_alive and not self._over.is_set:
                self._error = no_memory_error()
                self._over.set()

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

    # The frames of a helper outlive its last task for a moment. They must not keep arrays alive, so
    # they refer to workers only here, and this is cleared when the last task has ended.
    makers = [make_worker]
    workers: dict[int, Callable[[int], None]] = {}
    outer_check = current_stop_check()

    def check() -> None:
        if stopped:  # by a failure, or Ctrl-C, of another thread
            raise StoppedError
        outer_check()

    def help_out() -> None:
        _stop_check.set(check)
        me = threading.get_ident()
        while (task := take(1)) is not None:
            try:
                if me not in workers:
                    workers[me] = makers[0]()
                workers[me](task)
            except BaseException as e:  # noqa: BLE001  (handed to the caller below)
                fail(e)
            finally:
                finish()

    def wait() -> None:
        # A helper that has not taken a task yet will get none.
        while running:
            pause.acquire(timeout=_POLL_SECONDS)
            if running and not any(helper.is_alive for helper in helpers):
                raise no_memory_error()

    helpers: list[StartedThread] = []
    try:
        for _ in range(min(threads, count) - 1):
            try:
                helpers.append(StartedThread(partial(copy_context().run, help_out)))
            except (RuntimeError, MemoryError):  # no more threads: this one does the rest
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
        except MemoryError as e:
            fail(e)
            if not any(helper.is_alive for helper in helpers):
                break
        except BaseException as e:  # noqa: BLE001  (raised below, when it is safe)
            fail(e)
    makers.clear()
    workers.clear()
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
        while not self._wait(_POLL_SECONDS):
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


def forked_error(what: str, process: int) -> StorageError:
    """Return the error for what belongs to the process from which this one was forked."""
    return StorageError(
        errno.ENOTSUP,
        f"{what} belongs to process {process}, from which this one was forked: its threads are not "
        "here. Let that process save and wait; or save, load or make another CheckpointManager "
        "in this one",
    )


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


class _Turn:
    """A call that saves to a path, in the worker of the main thread."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.ended = Latch()


_turns_around: ContextVar[tuple[_Turn, ...]] = ContextVar("turns", default=())
_turns: dict[_Turn, None] = {}  # in the order of the calls; changed by single operations of dict


@contextmanager
def after_interrupted_saves(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for a save to the same path that the main thread was in when a handler interrupted it.

    So of two saves of one path the later one stays: that of the handler. The block is a save.
    """
    if not is_started_thread():  # a thread of the caller: no handler has interrupted it
        yield
        return
    turn = _Turn(os.path.realpath(path))
    around = _turns_around.get()  # a function that the caller has passed to such a call may save
    earlier = [each for each in list(_turns) if each.target == turn.target and each not in around]
    _turns[turn] = None
    token = _turns_around.set((*around, turn))
    try:
        for each in earlier:
            while not each.ended.wait(_POLL_SECONDS):
                check_stop()
        yield
    finally:
        _turns_around.reset(token)
        _turns.pop(turn, None)
        turn.ended.set()


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
    _turns.clear()


atexit.register(_warn_at_exit)
atexit.register(_wait_at_exit)  # called before the other one, for saves that began at the exit
with suppress(KeyError, RuntimeError):  # RuntimeError: the interpreter exits already
    # Before all that is registered with atexit, which may use the checkpoints.
    vars(threading)["_register_atexit"](_wait_at_exit)
os.register_at_fork(after_in_child=_forget)


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
        while not self._wait(self._before, _POLL_SECONDS):
            check_stop()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for all such work; return False on timeout. Called by such work, return at once."""
        return self._wait(self._last, timeout_seconds)

    def _wait(self, done: Latch | None, timeout_seconds: float | None) -> bool:
        if done is None or self.is_in_this_thread:
            return True
        return done.wait(timeout_seconds)
