"""Calls of one function on an executor, in the order in which they end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

from cordwood.errors import CordwoodError, ProcessError
from cordwood.threads.log import log
from cordwood.threads.stop_check import POLL_SECONDS, check_stop

_IN_FLIGHT = 1000  # calls that the executor has at a time, so that many more need no memory
_ATTEMPTS = 3  # of a call that fails in a way that another worker may not
_BREAKS = 3  # losses of all workers, one after another, without a call that ends

# Errors that every worker would raise: what is stored is damaged, or the call is wrong.
_FINAL = (CordwoodError, ValueError, TypeError, AttributeError, ImportError)


def _none_ended(positions: Sequence[int]) -> Mapping[int, Any]:
    del positions
    return {}


def run_on_executor(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    executor: Executor,
    *,
    results_of_lost: Callable[[Sequence[int]], Mapping[int, Any]] = _none_ended,
) -> Iterator[tuple[int, Any]]:
    """Yield the position of each tuple of arguments, and what the function returned for it.

    They come in the order in which they end. A call whose worker died, or that failed for a reason
    that may be of its worker, is made again. One that fails for good yields its exception.

    If the iterator is closed, or the caller is interrupted, calls that have not begun are
    cancelled; those that have begun end by themselves.

    Args:
        function: a function of a module, which the executor can send to another process.
        arguments: those of each call.
        executor: any executor of `concurrent.futures`.
        results_of_lost: called with the positions of calls that the executor has lost; returns what
            is known to be the results of some of them, which are not made again.

    Raises:
        ProcessError: the executor has lost its workers and takes no more calls.
        Exception: what `check_stop` raises.
    """
    calls = _Calls(function, arguments, executor, results_of_lost)
    try:
        yield from calls.results()
    finally:
        calls.cancel()


class _Calls:
    """The calls that wait, and those that the executor has."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        executor: Executor,
        results_of_lost: Callable[[Sequence[int]], Mapping[int, Any]],
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._executor = executor
        self._results_of_lost = results_of_lost
        self._lost_calls: list[int] = []  # those that were lost with their workers
        self._waiting = deque(range(len(arguments)))
        self._running: dict[Future[Any], tuple[int, int]] = {}  # position, breaks when it was sent
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._failures: Counter[int] = Counter()
        self._breaks = 0  # how often the executor has lost all workers
        self._breaks_in_a_row = 0
        self._lost: Exception | None = None  # the executor takes no more calls
        self._done = 0

    def results(self) -> Iterator[tuple[int, Any]]:
        while True:
            if self._lost_calls and self._ended.empty():
                yield from self._end_lost_calls()
            while self._may_send():
                self._send(self._waiting.popleft())
            if not self._running and not self._lost_calls:
                break
            check_stop()
            try:
                future = self._ended.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            position, breaks = self._running.pop(future)
            try:
                result = future.result()
            except BrokenExecutor as e:
                self._note_break(position, breaks, e)
                continue
            except Exception as e:  # noqa: BLE001  (yielded, unless it may pass)
                if self._may_pass(position, e):
                    self._waiting.append(position)
                    continue
                result = e
            self._breaks_in_a_row = 0
            self._done += 1
            yield position, result
        if self._lost is not None:
            raise ProcessError(
                f"the workers of {type(self._executor).__name__} died ({self._lost}): "
                f"{self._done} of {len(self._arguments)} tasks are done. A worker that needs more "
                "memory than there is gets killed: use fewer workers, and call again with a new "
                "executor; tasks that a journal lists are not repeated"
            ) from self._lost

    def _end_lost_calls(self) -> Iterator[tuple[int, Any]]:
        """Yield the results of lost calls that are known all the same; let the others wait."""
        results = self._results_of_lost(self._lost_calls)
        self._waiting.extend([each for each in self._lost_calls if each not in results])
        self._lost_calls.clear()
        self._done += len(results)
        yield from results.items()

    def cancel(self) -> None:
        """Cancel the calls that have not begun."""
        for future in self._running:
            future.cancel()

    def _may_send(self) -> bool:
        """Return True to send a call before a look at results; those that there are come first."""
        has_room = len(self._running) < _IN_FLIGHT and self._lost is None
        return bool(self._waiting) and has_room and self._ended.empty()

    def _send(self, position: int) -> None:
        try:
            future = self._executor.submit(self._function, *self._arguments[position])
        except BrokenExecutor as e:
            self._waiting.appendleft(position)
            self._lost = e
            return
        self._running[future] = position, self._breaks
        future.add_done_callback(self._ended.put)

    def _note_break(self, position: int, breaks: int, error: Exception) -> None:
        """Note a call that was lost with all workers of its executor, whose calls fail at once."""
        self._lost_calls.append(position)
        if breaks < self._breaks:
            return  # it was sent before the loss that was noticed already
        self._breaks += 1
        self._breaks_in_a_row += 1
        if self._breaks_in_a_row > _BREAKS:
            self._lost = error
        else:
            log.warning("workers died; their tasks are run again: %s", error)

    def _may_pass(self, position: int, error: BaseException) -> bool:
        """Return True if a call is to be made again after an error."""
        if isinstance(error, _FINAL) and not isinstance(error, OSError):
            return False
        self._failures[position] += 1
        if self._failures[position] >= _ATTEMPTS:
            return False
        log.warning("a task failed, and is run again: %s: %s", type(error).__name__, error)
        return True
