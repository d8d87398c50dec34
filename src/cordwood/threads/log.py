"""The log of cordwood, `logging.getLogger("cordwood")`, for which no save ever waits long.

A logging handler has a lock, and writes to a stream that has another one. A signal handler may have
interrupted the main thread inside of them, and wait for a save in another thread: if that save
logged something, it would wait for these locks, for ever. So the threads of cordwood hand their
records to a thread for the log, and wait a second at most until they are written. The main thread
and threads of the caller log as usual.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context

from cordwood.threads.latch import Latch
from cordwood.threads.started_thread import StartedThread, is_started_thread

_WAIT_SECONDS = 1.0
_CALLER = 3  # frames from `findCaller` to the caller of `info`

_logger = logging.getLogger("cordwood")


class Log:
    """The methods of a logger that cordwood uses."""

    def debug(self, message: str, *arguments: object) -> None:
        self._log(logging.DEBUG, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        self._log(logging.INFO, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self._log(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: object) -> None:
        self._log(logging.ERROR, message, arguments)

    def log(self, level: int, message: str, *arguments: object) -> None:
        self._log(level, message, arguments)

    def exception(self, message: str, *arguments: object) -> None:
        """Log an error with the exception that is being handled."""
        self._log(logging.ERROR, message, arguments, with_exception=True)

    def _log(
        self,
        level: int,
        message: str,
        arguments: tuple[object, ...],
        *,
        with_exception: bool = False,
    ) -> None:
        # Not `isEnabledFor`, which takes a lock of the module logging.
        if level < _logger.getEffectiveLevel() or level <= logging.root.manager.disable:
            return
        path, line, function, _ = _logger.findCaller(stacklevel=_CALLER)
        error = sys.exc_info() if with_exception else None
        thread = threading.get_ident()

        def emit() -> None:
            record = _logger.makeRecord(
                _logger.name, level, path, line, message, arguments, error, function
            )
            if threading.get_ident() != thread:
                record.thread, record.threadName = thread, "cordwood"
            _logger.handle(record)

        if is_started_thread():
            _writer.write(emit)
        else:
            emit()


class _Writer:
    """The thread that writes records of other threads."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._starting = threading.Lock()  # never held by the main thread
        self._thread: StartedThread | None = None
        self._is_late = False  # the record before is not written yet, and nothing waits for it

    def write(self, emit: Callable[[], None]) -> None:
        """Write a record; return after a while even if that is not possible yet."""
        written, context = Latch(), copy_context()
        errors: list[BaseException] = []

        def write() -> None:
            try:
                context.run(emit)
            except BaseException as e:  # noqa: BLE001  (of a handler; raised where it was logged)
                errors.append(e)
            finally:
                self._is_late = False
                written.set()

        if not self._has_thread():
            emit()
            return
        self._jobs.put(write)
        if self._is_late:
            return
        if not written.wait(_WAIT_SECONDS):
            self._is_late = True
        elif errors:
            raise errors.pop()

    def _has_thread(self) -> bool:
        """Start the thread if need be; return False if that is not possible."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive:
                try:
                    self._thread = StartedThread(self._write_all)
                except (RuntimeError, MemoryError):
                    return False
        return True

    def _write_all(self) -> None:
        jobs = self._jobs
        while True:
            jobs.get()()


_writer = _Writer()
os.register_at_fork(after_in_child=_writer.__init__)  # type: ignore[misc]
log = Log()
