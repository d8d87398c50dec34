"""What the processes of one save tell each other: process 0 decides, the others report to it.

A rendezvous is a row of rounds. In each, every process sends a value to process 0, which makes one
answer of them all; that answer is everybody's. So a process waits for few keys: process 0 for the
others' values, the others for its answer. A failure that is announced takes the place of the
answer and arrives as fast; and every process beats, so that one that dies without a word is
noticed.

They come together by `cordwood.processes.joining`. The keys of the room that process 0 opens then:
`in/<round>/<process>` a value, `say/<round>` the answer,
`failed/<process>` why a process gave up, `alive/<process>` its latest beat and how far its work has
come by then, `left/<process>` that it needs the room no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from cordwood.errors import ProcessError
from cordwood.processes.coordination import Processes
from cordwood.processes.join_messages import failure_text, named, no_sign_of_life
from cordwood.processes.joining import WAKE_SECONDS, Joining
from cordwood.processes.wait_log import WaitLogger

TIMEOUT_SECONDS = 600.0  # how long a process that is late may get no further
SILENCE_SECONDS = 30.0  # without a beat for this long, a process counts as dead
_BEATS = 10  # in that time
_ANSWER, _FAILURE = b"A", b"F"


class Rendezvous:
    """The processes that take part in one save, from their arrival on.

    An exception that leaves the `with` block is announced to the others: their next round, or
    `poll`, raises ProcessError with its text.

    Args:
        processes: this process and the others.
        purpose: what they meet for, the same on all: "save ckpt/100".
        timeout_seconds: how long a round waits for a process that is alive but gets no further:
            calls no `poll`.
        silence_seconds: how long a process may show no sign of life.
        arrival_seconds: how long to wait for all to come; None: `timeout_seconds`.
        background: it is entered in the background, where one thing is done at a time, while
            the foreground may hold other rendezvous.
    """

    def __init__(
        self,
        processes: Processes,
        purpose: str,
        *,
        timeout_seconds: float,
        silence_seconds: float,
        arrival_seconds: float | None = None,
        background: bool = False,
    ) -> None:
        self._processes = processes
        self._purpose = purpose
        self._timeout = timeout_seconds
        self._silence = silence_seconds
        self._joining = Joining(
            processes,
            purpose,
            background=background,
            timeout_seconds=timeout_seconds if arrival_seconds is None else arrival_seconds,
            silence_seconds=silence_seconds,
        )
        self._room: str | None = None  # until all have come
        self._round = 1
        self._others = range(1, processes.count)
        self._failure: str | None = None  # what a beat found
        self._steps = 0  # of this process's work
        self._stop: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of the two that follow
        self._beats: dict[int, tuple[bytes | None, float]] = {}  # the latest, and since when
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        """Raises ProcessError: a process did not come in time, or came for another purpose."""
        if self._processes.count > 1:
            name = f"cordwood-beat-{self._purpose}"
            threading.Thread(target=self._beat, name=name, daemon=True).start()
            try:
                if self._processes.index == 0:
                    _sweep(self._processes)
                self._room = self._joining.arrive(self.poll)
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
        return self._processes.index

    @property
    def count(self) -> int:
        """How many take part."""
        return self._processes.count

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for others that get no further."""
        return self._timeout

    def exchange(self, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        """Send `value`; process 0 calls `decide` with everyone's, in their order. Its result.

        Raises:
            ProcessError: a process died or failed, or did not come in time. Where `decide` raises,
                its exception passes through on process 0, and the others get this one.
        """
        if self._processes.count == 1:
            return decide([value])
        self.poll()
        if self._processes.index == 0:
            answer = decide([value, *self._collect()])
            self._processes.put(self._key("say", self._round), _ANSWER + answer)
        else:
            self._processes.put(self._key("in", self._round, self._processes.index), value)
            answer = self._listen()
        self._round += 1
        return answer

    def give_up(self, error: BaseException) -> None:
        """Announce why this process will not come; for an error before the `with` block."""
        self._leave(error)

    def poll(self) -> None:
        """Raise ProcessError if a failure was noticed; at no cost, for the middle of long work.

        Whoever waits for this process learns that it gets on.
        """
        self._steps += 1
        if self._stop is not None:
            self._stop()
        if self._failure is not None:
            raise ProcessError(self._failure)

    def poll_now(self) -> None:
        """As `poll`, of all that has been announced by now: asks the store."""
        if self._processes.count > 1:
            if self._room is None:
                pass
            elif self._processes.index == 0:
                self._look(self._others)
            else:  # not `get`, which waits
                self._hear(self._processes.list(self._key("say", "")).get(str(self._round)))
        self.poll()

    def has_failed(self) -> bool:
        """Return True if process 0 has announced a failure by now, or cannot be asked.

        On the other processes; also after the rendezvous.
        """
        if self._room is None:
            return True
        try:
            said = self._processes.list(self._key("say", "")).get(str(self._round))
        except ProcessError:
            return True
        return said is not None and said[:1] == _FAILURE

    def set_stop_check(self, stop: Callable[[], None]) -> None:
        """Have `poll`, and a round that waits, raise what `stop` raises."""
        self._stop = stop

    def _key(self, *parts: str | int) -> str:
        assert self._room is not None
        return self._room + "/".join(map(str, parts))

    def _collect(self) -> list[bytes]:
        """On process 0: what the others sent in this round."""
        now = time.monotonic()
        since = dict.fromkeys(self._others, (b"", now))  # how far each had come, and when
        prefix = self._key("in", self._round, "")
        missing: list[int] = []
        waiting = WaitLogger(lambda: f"{named(missing)} to do its part of: {self._purpose}")
        while True:
            found = {int(name): value for name, value in self._processes.list(prefix).items()}
            missing = [process for process in self._others if process not in found]
            now = time.monotonic()
            for process, steps in self._look(missing).items():
                if steps != since[process][0]:
                    since[process] = steps, now
            self.poll()
            if not missing:
                waiting.end()
                self._processes.delete(prefix)
                if self._round == 1:
                    self._joining.close()
                return [found[process] for process in self._others]
            late = [process for process in missing if now - since[process][1] > self._timeout]
            if late:
                raise ProcessError(
                    f"{named(late)} did not come within {self._timeout:g} s to "
                    f"{self._purpose} (step {self._round}); process 0 gave up"
                )
            waiting.tick()
            self._processes.get(f"{prefix}{missing[0]}", min(self._timeout, WAKE_SECONDS))

    def _listen(self) -> bytes:
        """On the others: the answer of this round."""
        limit = 2 * self._timeout + self._silence
        deadline = time.monotonic() + limit / 2
        latest: bytes | None = None
        waiting = WaitLogger(f"process 0, or others, to do their part of: {self._purpose}")
        while True:
            message = self._processes.get(self._key("say", self._round), WAKE_SECONDS)
            if message is not None:
                if message[:1] == _FAILURE:
                    raise ProcessError(message[1:].decode("utf-8", "surrogatepass"))
                waiting.end()
                return message[1:]
            self.poll()
            waiting.tick()
            if time.monotonic() < deadline:
                continue
            # Process 0 gets on as long as it waits for others, which it does not do for ever.
            steps = _steps_in(self._processes.get(self._key("alive", 0), WAKE_SECONDS))
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
                if self._room is None:
                    self._joining.beat(beat)
                else:
                    sign = f"{beat} {self._steps}".encode()
                    self._processes.put(self._key("alive", self._processes.index), sign)
                if self._room is None:
                    pass  # whoever waits for all to come looks by itself
                elif self._processes.index == 0:
                    self._look(self._others)
                else:
                    self._hear(self._processes.get(self._key("say", self._round), 0.001))
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
        failures = self._processes.list(self._key("failed", ""))
        beats = self._processes.list(self._key("alive", ""))
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
                elif now - since > self._silence:
                    silent.append(process)
        if failures:
            first = min(failures, key=int)
            self._failure = failures[first].decode("utf-8", "surrogatepass")
        elif silent:
            self._failure = no_sign_of_life(silent, self._silence, self._purpose)
        return {process: _steps_in(beats.get(str(process))) for process in awaited}

    def _leave(self, error: BaseException | None) -> None:
        self._stop = None  # which may refer to this rendezvous
        if self._ended.is_set() or self._processes.count == 1:
            return
        self._ended.set()
        with suppress(ProcessError):  # no store, nobody to tell
            if error is None:
                self._processes.put(self._key("left", self._processes.index), b"")
                if self._processes.index == 0:
                    self._processes.rooms.left.append(self._key())
                return
            text = str(error)
            if not isinstance(error, ProcessError):
                what = f"{type(error).__name__}: {error}"
                text = f"process {self._processes.index} failed to {self._purpose}: {what}"
            message = failure_text(text)
            if self._room is None:
                self._joining.leave(text)
            elif self._processes.index == 0:
                self._processes.put(self._key("say", self._round), _FAILURE + message)
                self._processes.put(self._key("left", 0), b"")
                self._processes.rooms.left.append(self._key())
            else:
                self._processes.put(self._key("failed", self._processes.index), message)


def _steps_in(beat: bytes | None) -> bytes:
    """How far the work of a process had come at its latest beat."""
    return (beat or b"").partition(b" ")[2]


def _sweep(processes: Processes) -> None:
    """Delete the rooms that everybody has left, well or not; and the oldest of too many others."""
    rooms = processes.rooms
    for _ in range(len(rooms.left)):
        room = rooms.left.popleft()
        left = {*processes.list(f"{room}left/"), *processes.list(f"{room}failed/")}
        if len(left) == processes.count or len(rooms.left) > rooms.MAX_SAID:
            processes.delete(room)
        else:
            rooms.left.append(room)
