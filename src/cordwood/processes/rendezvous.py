"""The rendezvous of the processes of a job for one call.

A rendezvous is a sequence of rounds. In each round every process sends a value to process 0, which
computes one answer from all values and sends it to all processes. So each process waits for few
keys: process 0 for the values of the others, the others for the answer. A process that fails
announces that, and its announcement takes the place of the answer. Every process sends heartbeats,
so that the others notice if it dies without an announcement.

The processes come together by `wait_for_arrivals.Arrival`, which returns a namespace. Its keys:

    values/<round>/<process>    the value that a process sends
    answer/<round>              the answer of process 0
    failed/<process>            why a process gave up
    heartbeats/<process>        the latest heartbeat, and how many steps of work it had done by then
    finished/<process>          set when the process no longer needs the namespace
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self, TypeVar

from cordwood.errors import ProcessError
from cordwood.processes.encode_messages import encode_text
from cordwood.processes.heartbeats import Heartbeats
from cordwood.processes.key_value_store import Processes
from cordwood.processes.process_error_texts import process_names, silence_text
from cordwood.processes.wait_for_arrivals import WAKE_SECONDS, Arrival
from cordwood.threads.latch import Latch
from cordwood.threads.started_thread import StartedThread
from cordwood.threads.stop_check import current_stop_check, never_stop, stop_check
from cordwood.threads.wait_logger import WaitLogger

_V = TypeVar("_V")
_Answer = TypeVar("_Answer")

TIMEOUT_SECONDS = 600.0  # how long a process may be late, and make no progress
SILENCE_SECONDS = 30.0  # a process without a heartbeat for this long counts as dead
_HEARTBEATS = 10  # in that time
_ANSWER, _FAILURE = b"A", b"F"
_LEFT = ("finished", "failed")  # keys of processes that need the namespace no longer


class Rendezvous:
    """The processes that take part in one call, such as a save, from their arrival on.

    An exception that leaves the `with` block is announced to the others: their next `exchange` or
    `poll` raises ProcessError with its text.

    Args:
        processes: this process and the others.
        purpose: the reason for the rendezvous, the same on all processes: "save ckpt/100".
        timeout_seconds: how long a round waits for a process that is alive but makes no progress,
            that is, calls no `poll`.
        silence_seconds: how long a process may send no heartbeat; None: SILENCE_SECONDS.
        arrival_seconds: how long to wait for all to arrive; None: `timeout_seconds`.
        background: True if it is entered in the background, where processes do one thing at a
            time, while the foreground may hold other rendezvous.
    """

    def __init__(
        self,
        processes: Processes,
        purpose: str,
        *,
        timeout_seconds: float,
        silence_seconds: float | None = None,
        arrival_seconds: float | None = None,
        background: bool = False,
    ) -> None:
        self._processes = processes
        self._purpose = purpose
        self._timeout = timeout_seconds
        self._silence = SILENCE_SECONDS if silence_seconds is None else silence_seconds
        # Only where there are other processes:
        self._arrival: Arrival
        self._heartbeats: Heartbeats
        if processes.count > 1:
            self._heartbeats = Heartbeats()
            self._arrival = Arrival(
                processes,
                purpose,
                background=background,
                timeout_seconds=timeout_seconds if arrival_seconds is None else arrival_seconds,
                silence_seconds=self._silence,
            )
        self._namespace: str | None = None  # until all have arrived
        self._round = 1
        self._others = range(1, processes.count)
        self._failure: str | None = None  # noticed by the heartbeat thread
        self._steps = 0  # of the work of this process
        self._outer_check: Callable[[], None] = never_stop
        self._ended = Latch()
        self._depth = 0  # of `with` blocks
        self._lock = threading.Lock()  # of `_heartbeats`

    def __enter__(self) -> Self:
        """Wait for all processes to arrive.

        In the block `check_stop` calls `poll`. A block within the block is part of it.

        Raises ProcessError if a process does not arrive in time, or has another purpose.
        """
        self._depth += 1
        if self._depth > 1:
            return self
        self._outer_check = current_stop_check()
        if self._processes.count > 1:
            StartedThread(self._send_heartbeats)
            try:
                if self._processes.index == 0:
                    _delete_finished(self._processes)
                self._namespace = self._arrival.arrive(self.poll)
            except BaseException as e:
                self.leave(e)
                raise
        self._polling = stop_check(self.poll)
        self._polling.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._depth -= 1
        if self._depth:
            if error is not None:
                self.leave(error)
            return
        self._polling.__exit__(None, None, None)
        self.leave(error)

    @property
    def index(self) -> int:
        """The number of this process."""
        return self._processes.index

    @property
    def count(self) -> int:
        """The number of processes that take part."""
        return self._processes.count

    @property
    def timeout_seconds(self) -> float:
        """The time to wait for other processes that make no progress."""
        return self._timeout

    def exchange(self, value: _V, decide: Callable[[list[_V]], _Answer]) -> _Answer:
        """Send a value to process 0, and return what `decide` returns there; one round.

        Between processes, values and answers are JSON; a tuple arrives as a list. A lone process
        encodes nothing: it calls `decide` with its value.

        Args:
            value: the value of this process.
            decide: called on process 0 only, with the values of all processes, in their order.

        Raises:
            ProcessError: a process died or failed, or did not send its value in time. If `decide`
                raises, its exception passes through on process 0, and the others get this one.
        """
        if self._processes.count == 1:
            return decide([value])
        self.poll()
        if self._processes.index == 0:
            answer = decide([value, *self._collect_values()])
            key = self._key("answer", self._round)
            self._processes.put(key, _ANSWER + json.dumps(answer).encode())
        else:
            key = self._key("values", self._round, self._processes.index)
            self._processes.put(key, json.dumps(value).encode())
            answer = json.loads(self._await_answer())
        self._round += 1
        return answer

    def poll(self) -> None:
        """Raise ProcessError if a failure was noticed, or what the check around the block raises.

        It is cheap, for the middle of long work, and counts as progress of this process, for those
        that wait for it.
        """
        self._steps += 1
        self._outer_check()
        if self._failure is not None:
            raise ProcessError(self._failure)

    def poll_now(self) -> None:
        """Read all announcements from the store; raise ProcessError if one is a failure."""
        if self._namespace is not None and self._processes.index == 0:
            self._note_failures(self._others)
        elif self._namespace is not None:  # not `get`, which waits
            answers = self._processes.list(self._key("answer", ""))
            self._receive(answers.get(str(self._round)))
        self.poll()

    def has_failed(self) -> bool:
        """Return True if process 0 has announced a failure by now, or cannot be asked.

        For the other processes; also after the rendezvous.
        """
        return self._was_answered_by_a_failure() is not False

    def is_refused(self) -> bool:
        """Return True if process 0 is known to have answered the last round with a failure.

        Also after the rendezvous.
        """
        if self._processes.count == 1:
            return True  # the caller has met the failure itself
        return self._was_answered_by_a_failure() is True

    def _was_answered_by_a_failure(self) -> bool | None:
        """Return True if process 0 has answered this round with a failure; None if unknown."""
        if self._namespace is None:
            return None
        try:
            answer = self._processes.list(self._key("answer", "")).get(str(self._round))
        except ProcessError:
            return None
        return answer is not None and answer[:1] == _FAILURE

    def _key(self, *parts: str | int) -> str:
        assert self._namespace is not None
        return self._namespace + "/".join(map(str, parts))

    def _collect_values(self) -> list[Any]:
        """Return, on process 0, what the others sent in this round."""
        time_now = time.monotonic()
        progress = dict.fromkeys(self._others, (b"", time_now))  # steps done, and since when
        prefix = self._key("values", self._round, "")
        missing: list[int] = []
        wait_logger = WaitLogger(
            lambda: f"{process_names(missing)} to do its part of: {self._purpose}"
        )
        while True:
            values = {int(name): value for name, value in self._processes.list(prefix).items()}
            missing = [process for process in self._others if process not in values]
            time_now = time.monotonic()
            for process, steps in self._note_failures(missing).items():
                if steps != progress[process][0]:
                    progress[process] = steps, time_now
            self.poll()
            if not missing:
                wait_logger.end()
                self._processes.delete(prefix)
                if self._round == 1:
                    self._arrival.delete_answer()
                return [json.loads(values[process]) for process in self._others]
            late = [each for each in missing if time_now - progress[each][1] > self._timeout]
            if late:
                raise ProcessError(
                    f"{process_names(late)} did not come within {self._timeout:g} s to "
                    f"{self._purpose} (step {self._round}); process 0 gave up"
                )
            wait_logger.tick()
            self._processes.get(f"{prefix}{missing[0]}", min(self._timeout, WAKE_SECONDS))

    def _await_answer(self) -> bytes:
        """Return, on the other processes, the answer of this round."""
        limit = 2 * self._timeout + self._silence
        deadline = time.monotonic() + limit / 2
        latest: bytes | None = None
        wait_logger = WaitLogger(f"process 0, or others, to do their part of: {self._purpose}")
        while True:
            answer = self._processes.get(self._key("answer", self._round), WAKE_SECONDS)
            if answer is not None:
                if answer[:1] == _FAILURE:
                    raise ProcessError(answer[1:].decode("utf-8", "surrogatepass"))
                wait_logger.end()
                return answer[1:]
            self.poll()
            wait_logger.tick()
            if time.monotonic() < deadline:
                continue
            # Process 0 makes progress while it waits for others, which has a time limit of its own.
            steps = _steps_in(self._processes.get(self._key("heartbeats", 0), WAKE_SECONDS))
            if steps == latest:
                break
            deadline, latest = time.monotonic() + limit / 2, steps
        raise ProcessError(
            f"process 0 did not answer within {limit:g} s to {self._purpose} (step {self._round})"
        )

    def _send_heartbeats(self) -> None:
        number = 0
        while not self._ended.is_set:
            try:
                if self._namespace is None:  # `Arrival.arrive` looks for failures by itself
                    self._arrival.send_heartbeat(number)
                else:
                    heartbeat = f"{number} {self._steps}".encode()
                    self._processes.put(self._key("heartbeats", self._processes.index), heartbeat)
                    if self._processes.index == 0:
                        self._note_failures(self._others)
                    else:
                        self._receive(self._processes.get(self._key("answer", self._round), 0.001))
            except ProcessError as e:
                if not self._ended.is_set:
                    self._failure = str(e)
                return
            number += 1
            self._ended.wait(self._silence / _HEARTBEATS)

    def _receive(self, answer: bytes | None) -> None:
        """Note the answer of process 0, if it is a failure."""
        if answer is not None and answer[:1] == _FAILURE:
            self._failure = answer[1:].decode("utf-8", "surrogatepass")

    def _note_failures(self, awaited: Iterable[int]) -> dict[int, bytes]:
        """Note failures, and silence among the awaited processes; for process 0.

        Returns how many steps of work each awaited process has done.
        """
        failures = self._processes.list(self._key("failed", ""))
        beats = self._processes.list(self._key("heartbeats", ""))
        with self._lock:
            silent = self._heartbeats.silent(dict.fromkeys(awaited, b""), beats, self._silence)
        if failures:
            first = min(failures, key=int)
            self._failure = failures[first].decode("utf-8", "surrogatepass")
        elif silent:
            self._failure = silence_text(silent, self._silence, self._purpose)
        return {process: _steps_in(beats.get(str(process))) for process in awaited}

    def leave(self, error: BaseException | None) -> None:
        """Announce that this process takes part no longer, and why, if it is for an error.

        The `with` block calls this; after an error before the block the caller does.
        """
        if self._ended.is_set or self._processes.count == 1:
            return
        self._ended.set()
        index = self._processes.index
        with suppress(ProcessError):  # without the store, nobody can be informed
            if error is None:
                self._processes.put(self._key("finished", index), b"")
                if index == 0:
                    self._processes.state.finished.append(self._key())
                return
            text = str(error)
            if not isinstance(error, ProcessError):
                what = f"{type(error).__name__}: {error}"
                text = f"process {index} failed to {self._purpose}: {what}"
            message = encode_text(text)
            if self._namespace is None:
                self._arrival.announce_failure(text)
            elif index == 0:
                self._processes.put(self._key("answer", self._round), _FAILURE + message)
                self._processes.put(self._key("finished", 0), b"")
                self._processes.state.finished.append(self._key())
            else:
                self._processes.put(self._key("failed", index), message)


def _steps_in(heartbeat: bytes | None) -> bytes:
    """Return how many steps of work a process had done by a heartbeat."""
    return (heartbeat or b"").partition(b" ")[2]


def _delete_finished(processes: Processes) -> None:
    """Delete namespaces that every process has left, and the oldest if there are too many."""
    state = processes.state
    for _ in range(len(state.finished)):
        namespace = state.finished.popleft()
        leavers = {name for key in _LEFT for name in processes.list(f"{namespace}{key}/")}
        if len(leavers) == processes.count or len(state.finished) > state.MAX_ENTRIES:
            processes.delete(namespace)
        else:
            state.finished.append(namespace)
