"""The threads of requests to object stores: one with the event loop in which all of them run.

Another one is kept for the exit of the interpreter: from then on Python 3.12 starts no thread,
while saves in the background still send requests. Where no thread can be started, a request runs in
the thread that sends it.

The main thread waits for a request without a lock: a signal handler that runs meanwhile may send
requests of its own (docs/design/0015-signal-handlers.md).
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple

from cordwood.errors import StorageError
from cordwood.threads.latch import Latch
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.started_thread import StartedThread, no_memory_error
from cordwood.threads.wait_logger import WaitLogger

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

POLL_SECONDS = 0.5  # between two looks at whether a wait is to end
_EXIT_SECONDS = 10.0  # the longest that the interpreter waits at its exit


class _RequestLoop(asyncio.SelectorEventLoop):
    """An event loop that knows which threads of obstore are handing it a result.

    If the interpreter ended while such a thread waits for the GIL, the process would be aborted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callers: dict[int, None] = {}  # threads
        atexit.register(self._wait_for_callers)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        thread = threading.get_ident()
        self._callers[thread] = None
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        finally:
            self._callers.pop(thread, None)

    def end_request(self) -> None:
        """Wait for the threads of obstore in an `atexit` handler: it may be the last one."""
        if not threading.main_thread().is_alive():
            self._wait_for_callers()

    def _wait_for_callers(self) -> None:
        end = time.monotonic() + _EXIT_SECONDS
        while self._callers and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.01)  # for one that has just left the call


class _Loop:
    """The event loop, in a daemon thread."""

    process = 0
    loop: _RequestLoop | None = None
    lock = threading.Lock()  # held while the threads are started, never by the main thread
    # Of the thread for the exit; None without one.
    jobs: queue.SimpleQueue[Callable[[], None]] | None = None

    @classmethod
    def get(cls) -> _RequestLoop | None:
        """Return the loop; start the threads if need be; None where that is not possible."""
        if cls.loop is None:
            run_in_worker(cls._start)
        if cls.loop is not None and cls.process != os.getpid():
            raise StorageError(
                errno.ENOTSUP,
                "this process was forked from one that had used an object store, and no "
                "request works in it: start it by 'spawn' or 'forkserver' of multiprocessing",
            )
        return cls.loop

    @classmethod
    def _start(cls) -> None:
        with cls.lock:
            if cls.loop is not None:
                return
            started = Latch()
            try:
                thread = StartedThread(partial(cls._run, started))
            except RuntimeError:  # no more threads are possible
                return
            while not started.wait(POLL_SECONDS):
                if not thread.is_alive and not started.is_set:
                    raise no_memory_error()
            with suppress(RuntimeError):
                jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
                StartedThread(partial(cls._do_jobs, jobs))
                cls.jobs = jobs

    @classmethod
    def _run(cls, started: Latch) -> None:
        """Make the loop, where no interrupt cuts that in two, and run it."""
        cls.process = os.getpid()
        loop = cls.loop = _RequestLoop()
        started.set()
        loop.run_forever()

    @staticmethod
    def _do_jobs(jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            jobs.get()()


def _forget_lock() -> None:
    """Release the lock in a forked child, where no thread starts the loop."""
    _Loop.lock = threading.Lock()
    _Loop.jobs = None


os.register_at_fork(after_in_child=_forget_lock)


def start_threads() -> None:
    """Start the threads that are here, so that saves can send requests while Python exits."""
    _Loop.get()


def call_in_thread(function: Callable[[], None]) -> Callable[[], None] | None:
    """Call a function, which raises nothing, in another thread; return what waits for its end.

    Returns None, and calls nothing, if there is no thread for it.
    """
    with suppress(RuntimeError):
        return StartedThread(function).wait
    jobs = _Loop.jobs
    if jobs is None:
        return None
    ended = Latch()

    def call() -> None:
        function()
        ended.set()

    def wait() -> None:
        ended.wait()

    jobs.put(call)
    return wait


class _Request(Generic[T]):
    """A coroutine in the event loop, for whose end a thread waits."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended = Latch()
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Start it; called in the loop."""
        if not self._is_cancelled:
            self._task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        try:
            self._results.append(await self._call())
        except BaseException as e:  # noqa: BLE001  (handed to the thread that waits)
            self._error = e
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """Give it up; called in the loop."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._results.pop()
        try:
            raise error
        finally:
            error = None  # breaks the cycle of the exception and this frame


_reporting: _Request[Any] | None = None  # the request whose wait is reported


def run_request(
    call: Callable[[], Coroutine[Any, Any, T]],
    doing: str | Callable[[], str],
    check: Callable[[], None],
    *,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """Run a coroutine in the event loop, and wait for it; a long wait is logged.

    Args:
        call: makes the coroutine.
        doing: what is waited for, for the log.
        check: called twice a second; if it raises, the coroutine is cancelled.
        progress: a number that changes with each step of the coroutine, after which the wait
            begins anew.
    """
    global _reporting
    loop = _Loop.get()
    request = _Request(call)
    waiting, at = WaitLogger(doing), progress()

    def tick() -> None:
        global _reporting
        nonlocal waiting, at
        check()
        if progress() != at:
            waiting.end()
            waiting, at = WaitLogger(doing), progress()
        # Of many requests that wait, one is reported.
        _reporting = _reporting or request
        if _reporting is request:
            waiting.tick()

    try:
        if loop is None:
            _run_here(request, tick)
        else:
            loop.call_soon_threadsafe(request.begin)
            while not request.ended.wait(POLL_SECONDS):
                tick()
            loop.end_request()
        return request.result()
    except BaseException:
        if loop is not None and not request.ended.is_set:
            loop.call_soon_threadsafe(request.cancel)
        raise
    finally:
        waiting.end()
        if _reporting is request:
            _reporting = None


def _run_here(request: _Request[Any], tick: Callable[[], None]) -> None:
    """Run a request in this thread, in an event loop of its own."""

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(request.run())
        try:
            while not (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
                tick()
        except BaseException:
            task.cancel()
            raise

    loop = _RequestLoop()
    try:
        loop.run_until_complete(run())
        loop.end_request()
    finally:
        loop.close()
