"""Calls that no interrupt cuts in two, because they run in a worker thread.

Python raises KeyboardInterrupt between any two steps of the main thread, also inside a `finally`
block: descriptors and locks would be lost. So every call that changes files does that in another
thread (`run_in_worker`), which no interrupt reaches. It ends at the next point where it calls
`check_stop`; only then the interrupt is raised.

Signal handlers run between any two steps of the main thread, too, and may save. So the main thread
holds no lock, and no half-made import, that another thread needs: the whole call runs in the other
thread, and the main thread waits for it (docs/design/0015-signal-handlers.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial, wraps
from typing import Generic, ParamSpec, TypeVar

from cordwood.threads.latch import Latch
from cordwood.threads.started_thread import StartedThread, no_memory_error
from cordwood.threads.stop_check import POLL_SECONDS, StoppedError, stop_check

T = TypeVar("T")
P = ParamSpec("P")


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
    run = _WorkerRun(function)
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


class _WorkerRun(Generic[T]):
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
        while not self._over.wait(POLL_SECONDS):
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
