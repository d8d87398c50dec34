"""Executors that fail as tests ask, and functions that worker processes can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any


class InlineExecutor(Executor):
    """An executor that runs each call at once, after a function that may raise for its worker.

    Attributes:
        calls: the number of calls so far.
    """

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        self._before = before
        self.calls = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            self._before(self.calls)
            future.set_result(function(*arguments, **named))
        except Exception as e:  # noqa: BLE001  (as executors do)
            future.set_exception(e)
        return future


class IdleExecutor(Executor):
    """An executor that begins no call.

    Attributes:
        futures: all calls.
    """

    def __init__(self, on_submit: Callable[[int], None] = lambda _: None) -> None:
        self._on_submit = on_submit
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        del function, arguments, named
        self.futures.append(Future())
        self._on_submit(len(self.futures))
        return self.futures[-1]


class BrokenPool(Executor):
    """An executor whose workers died before the first call."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        raise BrokenExecutor("a worker was killed")


@contextmanager
def spawned(count: int = 2) -> Iterator[ProcessPoolExecutor]:
    """Run a pool of new processes in the block."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool


def die_once(number: int, folder: str) -> int:
    """Return a number; the process that is the first to get the number 3 is killed."""
    if number == 3 and not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(number: int) -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


class WorkerThatDiesOnce(Executor):
    """An executor whose first call is killed, unless a mark exists already.

    Args:
        executor: runs the calls.
        mark: a new file, to which each call that begins adds a byte.
        after: True to kill the worker after the call, before it returns the result.
    """

    def __init__(self, executor: Executor, mark: Path, *, after: bool = False) -> None:
        self._executor = executor
        self._mark = str(mark)
        self._after = after

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return self._executor.submit(
            _die_or_call, self._mark, self._after, function, *arguments, **named
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def _die_or_call(
    mark: str, after: bool, function: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    dies = not Path(mark).exists()
    with open(mark, "ab") as file:
        file.write(b".")
    if dies and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    result = function(*arguments, **named)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
