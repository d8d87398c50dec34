"""The thread in which a call changes files, a few threads for numbered tasks; a pause of the GC.

Python raises KeyboardInterrupt between any two steps of the main thread, also inside a `finally`
block: descriptors and locks would be lost. So every call that changes files does that in another
thread (`run_in_worker`), which no interrupt reaches. It ends at the next point where it calls
`check_stop`; only then the interrupt is raised.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
StopCheck: TypeAlias = Callable[[], None]  # raises an exception to end the work that calls it

_POLL_SECONDS = 0.05
_WAITING_THREADS = 16


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


def run_tasks(
    count: int, *, threads: int, make_worker: Callable[[], Callable[[int], None]]
) -> None:
    """Call workers with the numbers of range(count), in order, in up to `threads` threads.

    Each thread makes its own worker, with buffers of its own, and has the context variables of the
    caller: its progress meter and its stop check. After the first exception no further
    task starts; the exception is raised here once every thread has ended.
    """
    if count == 0:
        return
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

    def help_out() -> None:
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


def map_in_threads(function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Return the results of a function for each tuple of arguments, in their order.

    It is called in several threads, and should do most of its work without the GIL. After an
    exception no further call starts; the exception is raised here.
    """
    results: dict[int, T] = {}

    def work(number: int) -> None:
        results[number] = function(*arguments[number])

    run_tasks(len(arguments), threads=default_threads(), make_worker=lambda: work)
    return [results[number] for number in range(len(arguments))]


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
