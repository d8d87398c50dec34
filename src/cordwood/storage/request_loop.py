"""The threads of requests to object stores: one with the event loop in which all of them run.

Another one is kept for the exit of the interpreter: from then on Python 3.12 starts no thread,
while saves in the background still send requests.
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
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

from cordwood.errors import StorageError
from cordwood.io.progress import WaitLogger

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POLL_SECONDS = 0.5
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

    def _wait_for_callers(self) -> None:
        end = time.monotonic() + _EXIT_SECONDS
        while self._callers and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.01)  # for one that has just left the call


class _Loop:
    """The event loop, in a daemon thread."""

    process = 0
    loop: asyncio.AbstractEventLoop | None = None
    lock = threading.Lock()
    jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # of the thread for the exit

    @classmethod
    def get(cls) -> asyncio.AbstractEventLoop:
        with cls.lock:
            if cls.loop is not None and cls.process != os.getpid():
                raise StorageError(
                    errno.ENOTSUP,
                    "this process was forked from one that had used an object store, and no "
                    "request works in it: start it by 'spawn' or 'forkserver' of multiprocessing",
                )
            if cls.loop is None:
                started = threading.Event()
                threading.Thread(
                    target=cls._run, args=(started,), name="cordwood-requests", daemon=True
                ).start()
                started.wait()
                threading.Thread(target=cls._do_jobs, name="cordwood-spare", daemon=True).start()
            assert cls.loop is not None
            return cls.loop

    @classmethod
    def _run(cls, started: threading.Event) -> None:
        """Make the loop, where no interrupt cuts that in two, and run it."""
        cls.loop, cls.process = _RequestLoop(), os.getpid()
        started.set()
        cls.loop.run_forever()

    @classmethod
    def _do_jobs(cls) -> None:
        while True:
            cls.jobs.get()()


def start_threads() -> None:
    """Start the threads that are here, so that saves can send requests while Python exits."""
    _Loop.get()


def call_in_thread(function: Callable[[], None], name: str) -> threading.Event:
    """Call a function, which raises nothing, in another thread; return what is set at its end."""
    ended = threading.Event()

    def call() -> None:
        function()
        ended.set()

    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError:  # no more threads are possible
        _Loop.jobs.put(call)
    return ended


_reporting: Future[Any] | None = None  # the request whose wait is reported


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
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    waiting, at = WaitLogger(doing), progress()
    try:
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                check()
                if progress() != at:
                    waiting.end()
                    waiting, at = WaitLogger(doing), progress()
                # Of many requests that wait, one is reported.
                _reporting = _reporting or future
                if _reporting is future:
                    waiting.tick()
    except BaseException:
        future.cancel()
        raise
    finally:
        waiting.end()
        if _reporting is future:
            _reporting = None
