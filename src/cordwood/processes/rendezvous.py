"""The rendezvous of the processes of one call, and what process 0 decides for all of them.

A rendezvous is a sequence of rounds. In each round every process sends a value to process 0, which
computes one answer from all values and sends it to all processes. So each process waits for few
keys: process 0 for the values of the others, the others for the answer. A process that fails
announces that, and its announcement takes the place of the answer. Every process sends heartbeats,
so that the others notice if it dies without an announcement.

The processes come together by `join_rendezvous.Joining`, which returns a namespace. Its keys:

    values/<round>/<process>    the value that a process sends
    answer/<round>              the answer of process 0
    failed/<process>            why a process gave up
    heartbeats/<process>        the latest heartbeat, and how many steps of work it had done by then
    finished/<process>          set when the process no longer needs the namespace

One file, because both ways of deciding for all processes, with rounds and without, are here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.io.threads import current_stop_check, never_stop, stop_check
from cordwood.processes.coordination import Processes, WaitLogger, current_processes
from cordwood.processes.join_rendezvous import (
    WAKE_SECONDS,
    Heartbeats,
    Joining,
    encode_text,
    process_names,
    silence_text,
)

_Value = TypeVar("_Value")
_Answer = TypeVar("_Answer")

TIMEOUT_SECONDS = 600.0  # how long a process may be late, and make no progress
SILENCE_SECONDS = 30.0  # a process without a heartbeat for this long counts as dead
_HEARTBEATS = 10  # in that time
_ANSWER, _FAILURE = b"A", b"F"
_CLEAR_EVERY = 64  # decisions


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
        self._joining: Joining  # only where there are other processes
        if processes.count > 1:
            self._joining = Joining(
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
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of `_heartbeats`
        self._heartbeats = Heartbeats()

    def __enter__(self) -> Self:
        """Wait for all processes to arrive.

        In the block `check_stop` calls `poll`.

        Raises ProcessError if a process does not arrive in time, or has another purpose.
        """
        self._outer_check = current_stop_check()
        if self._processes.count > 1:
            name = f"cordwood-beat-{self._purpose}"
            threading.Thread(target=self._send_heartbeats, name=name, daemon=True).start()
            try:
                if self._processes.index == 0:
                    _delete_finished(self._processes)
                self._namespace = self._joining.arrive(self.poll)
            except BaseException as e:
                self._leave(e)
                raise
        self._polling = stop_check(self.poll)
        self._polling.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._polling.__exit__(None, None, None)
        self._leave(error)

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

    def exchange(self, value: _Value, decide: Callable[[list[_Value]], _Answer]) -> _Answer:
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

    def give_up(self, error: BaseException) -> None:
        """Announce why this process will not arrive, after an error before the `with` block."""
        self._leave(error)

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
        if self._processes.count > 1:
            if self._namespace is None:
                pass
            elif self._processes.index == 0:
                self._note_failures(self._others)
            else:  # not `get`, which waits
                answers = self._processes.list(self._key("answer", ""))
                self._receive(answers.get(str(self._round)))
        self.poll()

    def has_failed(self) -> bool:
        """Return True if process 0 has announced a failure by now, or cannot be asked.

        For the other processes; also after the rendezvous.
        """
        if self._namespace is None:
            return True
        try:
            answer = self._processes.list(self._key("answer", "")).get(str(self._round))
        except ProcessError:
            return True
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
                    self._joining.delete_answer()
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
        while not self._ended.is_set():
            try:
                if self._namespace is None:
                    self._joining.send_heartbeat(number)
                else:
                    heartbeat = f"{number} {self._steps}".encode()
                    self._processes.put(self._key("heartbeats", self._processes.index), heartbeat)
                if self._namespace is None:
                    pass  # `Joining.arrive` looks for failures by itself
                elif self._processes.index == 0:
                    self._note_failures(self._others)
                else:
                    self._receive(self._processes.get(self._key("answer", self._round), 0.001))
            except ProcessError as e:
                if not self._ended.is_set():
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

    def _leave(self, error: BaseException | None) -> None:
        if self._ended.is_set() or self._processes.count == 1:
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
                self._joining.announce_failure(text)
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
        leavers = {
            *processes.list(f"{namespace}finished/"),
            *processes.list(f"{namespace}failed/"),
        }
        if len(leavers) == processes.count or len(state.finished) > state.MAX_ENTRIES:
            processes.delete(namespace)
        else:
            state.finished.append(namespace)


class ProcessGroup:
    """This process and the others of its job, or this process alone.

    All processes ask for the same decisions in the same order; one that left some out catches up.

    Args:
        root: the directory of the steps, for errors.
        timeout_seconds: how long a process may be late.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._processes: Processes | None = None  # the processes that use the namespace
        self._namespace: str | None = None  # of the decisions; None: not known yet
        self._number = 0  # of the next decision

    @property
    def index(self) -> int:
        """The number of this process."""
        return current_processes().index

    @property
    def count(self) -> int:
        """The number of processes."""
        return current_processes().count

    def rendezvous(self, what: str, *, timeout_seconds: float | None = None) -> Rendezvous:
        """Return a rendezvous of all processes, not entered yet.

        Args:
            what: its purpose, the same on all processes: "delete step 3 of".
            timeout_seconds: how long a round may take; None: that of this group.
        """
        return Rendezvous(
            current_processes(),
            f"{what} {self._root}",
            timeout_seconds=timeout_seconds or self._timeout_seconds,
            arrival_seconds=self._timeout_seconds,
        )

    def agree(self, what: str, choose: Callable[[], _Answer]) -> _Answer:
        """Return on all processes the JSON value that `choose` returns on process 0.

        Args:
            what: the purpose, as for `rendezvous`.
            choose: called on process 0 only.

        Raises ProcessError if a process does not come; and what `choose` raises, on process 0.
        """
        with self.rendezvous(what) as rendezvous:
            return rendezvous.exchange(None, lambda _: choose())

    def decide(
        self, step: int, ask: Callable[[bool], str | None], *, preempted: bool
    ) -> tuple[bool, str | None]:
        """Return what process 0 decides about a step: True if the job is preempted, and a reason.

        It costs one key of the shared store and no round, so it can be made in every step of a
        loop. Decisions about steps that this process has left out are passed over.

        Args:
            step: the step.
            ask: called on process 0 with True if any process is preempted; returns the reason.
            preempted: True if this process has been told to end.

        Raises ProcessError if process 0 does not come, or has left this step out.
        """
        processes = current_processes()
        if processes.count == 1:
            return preempted, ask(preempted)
        if processes is not self._processes:
            self._processes, self._namespace = processes, None
        if processes.index == 0:
            return self._publish(processes, step, ask, preempted=preempted)
        return self._receive(processes, step, preempted=preempted)

    def restart_decisions(self) -> None:
        """Begin the decisions anew in another namespace; where all processes are together.

        Process 0 calls this before the others do.
        """
        processes, old = current_processes(), self._namespace
        self._processes, self._namespace = processes, None
        if processes.count > 1 and processes.index == 0:
            self._open_namespace(processes)
            if old is not None:
                processes.delete(old)

    def _open_namespace(self, processes: Processes) -> str:
        self._namespace, self._number = f"cordwood/{processes.state.new_namespace()}/", 0
        processes.put(self._key(), self._namespace.encode())
        return self._namespace

    def _key(self) -> str:
        """Return the key that holds the namespace of the decisions about this root."""
        return f"cordwood/decisions/{digest_of(self._root.encode('utf-8', 'surrogatepass')).hex()}"

    def _publish(
        self,
        processes: Processes,
        step: int,
        ask: Callable[[bool], str | None],
        *,
        preempted: bool,
    ) -> tuple[bool, str | None]:
        """Make a decision on process 0, and put it into the store."""
        namespace = self._namespace or self._open_namespace(processes)
        number, self._number = self._number, self._number + 1
        preempted = preempted or bool(processes.list(f"{namespace}preempted/"))
        reason = ask(preempted)
        message = json.dumps([step, preempted, reason]).encode()
        processes.put(f"{namespace}decisions/{number}", message)
        if number % _CLEAR_EVERY == 0:
            received = processes.list(f"{namespace}received/")
            if len(received) == processes.count - 1:
                received_by_all = min(map(int, received.values()))
                for name in processes.list(f"{namespace}decisions/"):
                    if int(name) < received_by_all:
                        processes.delete(f"{namespace}decisions/{name}")
        return preempted, reason

    def _receive(
        self, processes: Processes, step: int, *, preempted: bool
    ) -> tuple[bool, str | None]:
        """Wait, on another process, for the decision about a step."""
        wait = _Wait(processes, f"say whether step {step} of {self._root} is to be saved")
        if self._namespace is None:
            self._namespace = wait.value(self._key(), self._timeout_seconds).decode()
            self._number = 0
        namespace = self._namespace
        if preempted:
            processes.put(f"{namespace}preempted/{processes.index}", b"")
        while True:
            self._namespace = None  # if no decision comes, look for another namespace next time
            message = wait.value(f"{namespace}decisions/{self._number}", self._timeout_seconds)
            self._namespace = namespace
            decided_step, preempted, reason = json.loads(message)
            if decided_step > step:  # in a run that went back, this step is decided again later
                number = self._later_decision(processes, step)
                if number is None:
                    raise ProcessError(
                        f"process {processes.index} came to save step {step} of {self._root}, "
                        f"process 0 to save step {decided_step}: every process must call save for "
                        "the same steps, in their order"
                    )
                self._number = number
                continue
            number, self._number = self._number, self._number + 1
            if decided_step == step:
                break  # a decision about an earlier step is one that this process left out
        if number % _CLEAR_EVERY == 0:
            processes.put(f"{self._namespace}received/{processes.index}", str(number).encode())
        return preempted, reason

    def _later_decision(self, processes: Processes, step: int) -> int | None:
        """Return the number of the next decision about a step; None if there is none yet."""
        decisions = processes.list(f"{self._namespace}decisions/").items()
        later = [(int(name), json.loads(value)[0]) for name, value in decisions]
        return min((n for n, each in later if each == step and n > self._number), default=None)


class _Wait:
    """A wait for values that process 0 sets, with one time limit for all of them."""

    def __init__(self, processes: Processes, what: str) -> None:
        self._processes = processes
        self._what = what
        self._start = time.monotonic()
        self._wait_logger = WaitLogger(f"process 0 to {what}")

    def value(self, key: str, timeout_seconds: float) -> bytes:
        """Return the value of a key. Raises ProcessError if it has none in time."""
        while (value := self._processes.get(key, WAKE_SECONDS)) is None:
            if time.monotonic() - self._start > timeout_seconds:
                raise ProcessError(
                    f"process 0 did not come within {timeout_seconds:g} s to {self._what}"
                )
            self._wait_logger.tick()
        self._wait_logger.end()
        return value
