"""The processes of a job, the key-value store that they share, and the rendezvous of one call.

`current_processes()` returns the processes that take part: this process alone, or all processes of
`jax.distributed.initialize`. Nothing here runs on devices, so background threads may use it.

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

One file, because a process without others needs this module only.
"""

from __future__ import annotations

import itertools
import json
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol, Self, TypeVar

from cordwood.errors import ProcessError
from cordwood.io.latch import Latch
from cordwood.io.progress import WaitLogger
from cordwood.io.started_thread import StartedThread
from cordwood.io.threads import current_stop_check, never_stop, run_in_worker, stop_check
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
_LEFT = ("finished", "failed")  # keys of processes that need the namespace no longer


class RendezvousState:
    """The state that a process keeps from one rendezvous to the next.

    See `cordwood.processes.join_rendezvous`.

    Attributes:
        incarnation: random bytes of this process; a process that is started in its place has
            others.
        is_registered: True once the store holds the incarnation.
        background_purposes: the latest purposes of background rendezvous of this process.
        failure_counts: by purpose, how often this process has failed since the processes last met
            for that purpose.
        announced_keys: the keys of announcements by this process that are still in the store, the
            oldest first.
        joined: on process 0, by lane and process, the last arrival that a namespace was opened for.
        incarnations: on process 0, the incarnation of each process.
        skipped: on process 0, by process, the last arrival that process 0 did not wait for.
        refused: on process 0, by process, the last arrival that process 0 refused.
        finished: on process 0, namespaces that process 0 no longer needs; other processes may
            still read there.
    """

    MAX_ENTRIES = 64

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.incarnation = secrets.token_bytes(8)
        self.is_registered = False
        self.background_purposes: deque[str] = deque(maxlen=self.MAX_ENTRIES)
        self.failure_counts: dict[str, int] = {}
        self.announced_keys: deque[str] = deque()
        self.joined: dict[tuple[str, int], bytes] = {}
        self.incarnations: dict[int, bytes] = {}
        self.skipped: dict[int, bytes] = {}
        self.refused: dict[int, bytes] = {}
        self.finished: deque[str] = deque()

    def new_namespace(self) -> int:
        """Return the number of a new namespace; for process 0."""
        return next(self._numbers)

    def remember(self, key: str) -> str | None:
        """Note an announcement, and drop the oldest entries; return a key to delete, or None."""
        keys, failure_counts = self.announced_keys, self.failure_counts
        if key in keys:
            keys.remove(key)
        keys.append(key)
        while len(failure_counts) > self.MAX_ENTRIES:
            del failure_counts[next(iter(failure_counts))]
        return keys.popleft() if len(keys) > self.MAX_ENTRIES else None


class Processes(Protocol):
    """This process, which is one of `count` processes, and the key-value store that they share.

    Every method raises ProcessError if the store cannot be reached.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def state(self) -> RendezvousState: ...

    def put(self, key: str, value: bytes) -> None:
        """Set a key, and replace its value if it has one."""

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        """Wait until a key has a value, and return it; None after `timeout_seconds`."""

    def list(self, prefix: str) -> Mapping[str, bytes]:
        """Return the keys under a prefix that ends in a slash, and their values.

        The keys come without the prefix.
        """

    def delete(self, prefix: str) -> None:
        """Delete a key, or all keys under a prefix that ends in a slash."""


def key_matches(prefix: str, key: str) -> bool:
    """Return True if `delete(prefix)` deletes a key.

    >>> [key_matches("answer/6", "answer/64"), key_matches("answer/", "answer/64")]
    [False, True]
    """
    return key == prefix or (prefix.endswith("/") and key.startswith(prefix))


class _SingleProcess:
    """A job of one process: no other process sets a key, so `get` does not wait."""

    index = 0
    count = 1

    def __init__(self) -> None:
        self.state = RendezvousState()
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str, timeout_seconds: float) -> bytes | None:  # noqa: ARG002
        return self._values.get(key)

    def list(self, prefix: str) -> Mapping[str, bytes]:
        return {k[len(prefix) :]: v for k, v in self._values.items() if k.startswith(prefix)}

    def delete(self, prefix: str) -> None:
        for key in [k for k in self._values if key_matches(prefix, k)]:
            del self._values[key]


SINGLE_PROCESS: Processes = _SingleProcess()


class JaxProcesses:
    """The processes of `jax.distributed`, with the store of its coordination service.

    The service runs in process 0. If process 0 dies, jax ends the other processes at once with its
    own message. If another process dies, jax ends the rest after its heartbeat timeout (100 s
    unless `jax.distributed.initialize` sets another), unless `jax_enable_recoverability` is on.
    """

    def __init__(self, client: Any, index: int, count: int) -> None:
        self._client = client
        self.index = index
        self.count = count
        self.state = RendezvousState()

    def put(self, key: str, value: bytes) -> None:
        with self._explaining_errors():
            self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        milliseconds = max(1, round(timeout_seconds * 1000))
        try:
            with self._explaining_errors():
                value: bytes = self._client.blocking_key_value_get_bytes(key, milliseconds)
        except ProcessError as e:
            if "DEADLINE_EXCEEDED" in str(e.__cause__):
                return None
            raise
        return value

    def list(self, prefix: str) -> Mapping[str, bytes]:
        with self._explaining_errors():
            items = self._client.key_value_dir_get_bytes(prefix)
        return {key.removeprefix(prefix): value for key, value in items}

    def delete(self, prefix: str) -> None:
        with self._explaining_errors():
            self._client.key_value_delete(prefix)

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:  # jax.errors.JaxRuntimeError
            raise ProcessError(
                f"process {self.index} cannot reach jax's coordination service, which runs in "
                f"process 0: {str(e).splitlines()[0]}; if process 0 died, restart the job"
            ) from e


_overriding: ContextVar[Processes | None] = ContextVar("cordwood_processes", default=None)
_lock = threading.Lock()
_jax_processes: tuple[Any, JaxProcesses] | None = None  # jax's client, and the object made for it


def current_processes() -> Processes:
    """Return the processes that take part, as this process sees them now; never import jax.

    Raises ProcessError if several processes run and cordwood cannot communicate with them.
    """
    processes = _overriding.get()
    if processes is not None:
        return processes
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "distributed"):  # another thread may be importing it now
        return SINGLE_PROCESS
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return SINGLE_PROCESS
    from cordwood.devices.jax_arrays import coordination_client

    client = coordination_client()
    latest = _jax_processes
    if latest is not None and latest[0] is client:
        return latest[1]
    return run_in_worker(lambda: _processes_of(client, jax.process_index(), jax.process_count()))


def _processes_of(client: Any, index: int, count: int) -> JaxProcesses:
    """Return the one object for a client; called in a worker, because it takes a lock."""
    global _jax_processes
    with _lock:
        if _jax_processes is None or _jax_processes[0] is not client:
            _jax_processes = client, JaxProcesses(client, index, count)
        return _jax_processes[1]


@contextmanager
def override(processes: Processes) -> Iterator[None]:
    """Take part as `processes` in the block, in this thread only."""
    token = _overriding.set(processes)
    try:
        yield
    finally:
        _overriding.reset(token)


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
        self._joining: Joining
        self._heartbeats: Heartbeats
        if processes.count > 1:
            self._heartbeats = Heartbeats()
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
        self._ended = Latch()
        self._lock = threading.Lock()  # of `_heartbeats`

    def __enter__(self) -> Self:
        """Wait for all processes to arrive.

        In the block `check_stop` calls `poll`.

        Raises ProcessError if a process does not arrive in time, or has another purpose.
        """
        self._outer_check = current_stop_check()
        if self._processes.count > 1:
            StartedThread(self._send_heartbeats)
            try:
                if self._processes.index == 0:
                    _delete_finished(self._processes)
                self._namespace = self._joining.arrive(self.poll)
            except BaseException as e:
                self.leave(e)
                raise
        self._polling = stop_check(self.poll)
        self._polling.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        while not self._ended.is_set:
            try:
                if self._namespace is None:  # `Joining.arrive` looks for failures by itself
                    self._joining.send_heartbeat(number)
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
        leavers = {name for key in _LEFT for name in processes.list(f"{namespace}{key}/")}
        if len(leavers) == processes.count or len(state.finished) > state.MAX_ENTRIES:
            processes.delete(namespace)
        else:
            state.finished.append(namespace)
