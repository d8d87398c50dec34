"""What the processes of one save tell each other: process 0 decides, the others report to it.

A meeting is a row of rounds. In each, every process sends a value to process 0, which makes one
answer of them all; that answer is everybody's. So a process waits for few keys: process 0 for the
others' values, the others for its answer. A failure that is announced takes the place of the
answer and arrives as fast; and every process beats, so that one that dies without a word is
noticed.

The keys of a meeting's room: `in/<round>/<process>` a value, `say/<round>` the answer,
`failed/<process>` why a process gave up, `alive/<process>` its latest beat and how far its work has
come by then, `left/<process>` that it needs the room no more.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from cordwood.engine.hosts import Hosts
from cordwood.errors import ProcessError

__all__ = ["SILENCE_SECONDS", "TIMEOUT_SECONDS", "Meeting", "named"]

TIMEOUT_SECONDS = 600.0  # how long a process that is late may get no further
SILENCE_SECONDS = 30.0  # without a beat for this long, a process counts as dead
_BEATS = 10  # in that time
_WAKE_SECONDS = 0.25  # how long one wait lasts: Ctrl-C and failures are looked for in between
_TOKEN_BYTES = 8
_MAX_TEXT = 4000  # characters of an error that are passed on
_MAX_NAMED = 16  # processes in a message
_ANSWER, _FAILURE = b"A", b"F"


class Meeting:
    """The processes that take part in one save, from their arrival on.

    Every process makes its meetings in the same order, and then enters each or gives it up. An
    exception that leaves the `with` block is announced to the others: their next round, or
    `check`, raises ProcessError with its text.

    Args:
        hosts: this process and the others.
        purpose: what they meet for, the same on all: "save ckpt/100".
        timeout_seconds: how long a round waits for a process that is alive but gets no further:
            calls no `check`.
        silence_seconds: how long a process may show no sign of life.
    """

    def __init__(
        self, hosts: Hosts, purpose: str, *, timeout_seconds: float, silence_seconds: float
    ) -> None:
        self._hosts = hosts
        self._purpose = purpose
        self._timeout = timeout_seconds
        self._silence = silence_seconds
        self._room = hosts.rooms.open()
        self._round = 0
        self._others = range(1, hosts.count)
        self._failure: str | None = None  # what a beat found
        self._steps = 0  # of this process's work
        self._stop: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of the two that follow
        self._beats: dict[int, tuple[bytes | None, float]] = {}  # the latest, and since when
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        """Raises ProcessError: a process did not come in time, or came for another purpose."""
        if self._hosts.count > 1:
            name = f"cordwood-beat-{self._purpose}"
            threading.Thread(target=self._beat, name=name, daemon=True).start()
            try:
                if self._hosts.index == 0:
                    _sweep(self._hosts)
                self._arrive()
            except BaseException as e:
                self._leave(e)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    @property
    def index(self) -> int:
        """Which process this is."""
        return self._hosts.index

    @property
    def count(self) -> int:
        """How many take part."""
        return self._hosts.count

    def round(self, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        """Send `value`; process 0 calls `decide` with everyone's, in their order. Its result.

        Raises:
            ProcessError: a process died or failed, or did not come in time. Where `decide` raises,
                its exception passes through on process 0, and the others get this one.
        """
        if self._hosts.count == 1:
            return decide([value])
        self.check()
        if self._hosts.index == 0:
            answer = decide([value, *self._collect()])
            self._hosts.put(self._key("say", self._round), _ANSWER + answer)
        else:
            self._hosts.put(self._key("in", self._round, self._hosts.index), value)
            answer = self._listen()
        self._round += 1
        return answer

    def give_up(self, error: BaseException) -> None:
        """Announce why this process will not come; for an error before the `with` block."""
        self._leave(error)

    def check(self) -> None:
        """Raise ProcessError if a failure was noticed; at no cost, for the middle of long work.

        Whoever waits for this process learns that it gets on.
        """
        self._steps += 1
        if self._stop is not None:
            self._stop()
        if self._failure is not None:
            raise ProcessError(self._failure)

    def check_now(self) -> None:
        """As `check`, of all that has been announced by now: asks the store."""
        if self._hosts.count > 1:
            if self._hosts.index == 0:
                self._look(self._others)
            else:  # not `get`, which waits
                self._hear(self._hosts.list(self._key("say", "")).get(str(self._round)))
        self.check()

    def has_failed(self) -> bool:
        """On the others, even after the meeting: whether process 0 has announced a failure by now,
        or cannot be asked."""
        try:
            said = self._hosts.list(self._key("say", "")).get(str(self._round))
        except ProcessError:
            return True
        return said is not None and said[:1] == _FAILURE

    def heed(self, stop: Callable[[], None]) -> None:
        """Have `check`, and a round that waits, raise what `stop` raises."""
        self._stop = stop

    def _key(self, *parts: str | int) -> str:
        return self._room + "/".join(map(str, parts))

    # A process that was restarted alone counts its rooms from 0 again and would find old answers:
    # so process 0 gives back what each one sent, which no older answer holds.
    def _arrive(self) -> None:
        token = secrets.token_bytes(_TOKEN_BYTES)
        purpose = self._purpose.encode("utf-8", "surrogatepass")

        def decide(values: list[bytes]) -> bytes:
            for process, value in enumerate(values):
                if value[_TOKEN_BYTES:] != purpose:
                    other = value[_TOKEN_BYTES:].decode("utf-8", "surrogatepass")
                    raise ProcessError(
                        f"process {process} came to {other}, process 0 to {self._purpose}: every "
                        "process must make the same saves, in the same order"
                    )
            return b"".join([value[:_TOKEN_BYTES] for value in values])

        tokens = self.round(token + purpose, decide)
        at = self._hosts.index * _TOKEN_BYTES
        if tokens[at : at + _TOKEN_BYTES] != token:
            raise ProcessError(
                f"process {self._hosts.index} came to {self._purpose} and is out of step with "
                "process 0; if it was restarted alone, restart the whole job"
            )

    def _collect(self) -> list[bytes]:
        """On process 0: what the others sent in this round."""
        now = time.monotonic()
        since = dict.fromkeys(self._others, (b"", now))  # how far each had come, and when
        prefix = self._key("in", self._round, "")
        while True:
            found = {int(name): value for name, value in self._hosts.list(prefix).items()}
            missing = [process for process in self._others if process not in found]
            now = time.monotonic()
            for process, steps in self._look(missing).items():
                if steps != since[process][0]:
                    since[process] = steps, now
            self.check()
            if not missing:
                self._hosts.delete(prefix)
                return [found[process] for process in self._others]
            late = [process for process in missing if now - since[process][1] > self._timeout]
            if late:
                raise ProcessError(
                    f"{named(late)} did not come within {self._timeout:g} s to "
                    f"{self._purpose} (step {self._round}); process 0 gave up"
                )
            self._hosts.get(f"{prefix}{missing[0]}", min(self._timeout, _WAKE_SECONDS))

    def _listen(self) -> bytes:
        """On the others: the answer of this round."""
        limit = 2 * self._timeout + self._silence
        deadline = time.monotonic() + limit / 2
        latest: bytes | None = None
        while True:
            message = self._hosts.get(self._key("say", self._round), _WAKE_SECONDS)
            if message is not None:
                if message[:1] == _FAILURE:
                    raise ProcessError(message[1:].decode("utf-8", "surrogatepass"))
                return message[1:]
            self.check()
            if time.monotonic() < deadline:
                continue
            # Process 0 gets on as long as it waits for others, which it does not do for ever.
            steps = _steps_in(self._hosts.get(self._key("alive", 0), _WAKE_SECONDS))
            if steps == latest:
                break
            deadline, latest = time.monotonic() + limit / 2, steps
        raise ProcessError(
            f"process 0 did not answer within {limit:g} s to {self._purpose} (step {self._round})"
        )

    def _beat(self) -> None:
        beat = 0
        while not self._ended.is_set():
            try:
                sign = f"{beat} {self._steps}".encode()
                self._hosts.put(self._key("alive", self._hosts.index), sign)
                if self._hosts.index == 0:
                    self._look(self._others)
                else:
                    self._hear(self._hosts.get(self._key("say", self._round), 0.001))
            except ProcessError as e:
                if not self._ended.is_set():
                    self._failure = str(e)
                return
            beat += 1
            self._ended.wait(self._silence / _BEATS)

    def _hear(self, message: bytes | None) -> None:
        """Take note of what process 0 says, if it is a failure."""
        if message is not None and message[:1] == _FAILURE:
            self._failure = message[1:].decode("utf-8", "surrogatepass")

    def _look(self, awaited: Iterable[int]) -> dict[int, bytes]:
        """On process 0: take note of failures, and of silence among those that are awaited.

        How far the work of those has come.
        """
        failures = self._hosts.list(self._key("failed", ""))
        beats = self._hosts.list(self._key("alive", ""))
        with self._lock:
            now = time.monotonic()
            paused = now - self._looked > self._silence / 2  # this process was: wait anew
            self._looked = now
            silent = []
            for process in awaited:
                beat = beats.get(str(process))
                latest, since = self._beats.get(process, (None, now))
                if beat != latest or paused or process not in self._beats:
                    self._beats[process] = beat, now
                elif (beat is not None or self._round) and now - since > self._silence:
                    silent.append(process)  # in round 0 it may not have come yet
        if failures:
            first = min(failures, key=int)
            self._failure = failures[first].decode("utf-8", "surrogatepass")
        elif silent:
            self._failure = (
                f"{named(silent)} gave no sign of life for {self._silence:g} s while all met to "
                f"{self._purpose}: dead, or cut off"
            )
        return {process: _steps_in(beats.get(str(process))) for process in awaited}

    def _leave(self, error: BaseException | None) -> None:
        self._stop = None  # which may refer to this meeting
        if self._ended.is_set() or self._hosts.count == 1:
            return
        self._ended.set()
        with suppress(ProcessError):  # no store, nobody to tell
            if error is None:
                self._hosts.put(self._key("left", self._hosts.index), b"")
                if self._hosts.index == 0:
                    self._hosts.rooms.left.append(self._room)
                return
            text = str(error)
            if not isinstance(error, ProcessError):
                what = f"{type(error).__name__}: {error}"
                text = f"process {self._hosts.index} failed to {self._purpose}: {what}"
            message = text[:_MAX_TEXT].encode("utf-8", "surrogatepass")
            if self._hosts.index == 0:
                self._hosts.put(self._key("say", self._round), _FAILURE + message)
            else:
                self._hosts.put(self._key("failed", self._hosts.index), message)


def _steps_in(beat: bytes | None) -> bytes:
    """How far the work of a process had come at its latest beat."""
    return (beat or b"").partition(b" ")[2]


def _sweep(hosts: Hosts) -> None:
    """Delete the rooms that everybody has left."""
    for _ in range(len(hosts.rooms.left)):
        room = hosts.rooms.left.popleft()
        if len(hosts.list(f"{room}left/")) == hosts.count:
            hosts.delete(room)
        else:
            hosts.rooms.left.append(room)


def named(processes: Iterable[int]) -> str:
    """ "process 2", "processes 1, 5 and 7"."""
    numbers = list(processes)
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = [str(number) for number in numbers[:_MAX_NAMED]]
    last = f"{len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else shown.pop()
    return f"processes {', '.join(shown)} and {last}"
