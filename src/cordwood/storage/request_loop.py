"""The event loop in which all requests to object stores run, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
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
            assert cls.loop is not None
            return cls.loop

    @classmethod
    def _run(cls, started: threading.Event) -> None:
        """Make the loop, where no interrupt cuts that in two, and run it."""
        cls.loop, cls.process = _RequestLoop(), os.getpid()
        started.set()
        cls.loop.run_forever()


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
