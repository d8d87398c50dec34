"""Processes come together for one purpose, whatever each of them has done before.

Process 0 opens a room for a rendezvous once all others have arrived for the same purpose. Nobody
counts rendezvous, so a process that left one out, or made one too many, meets the others again at
the next purpose that they share:

- Of purposes that differ in a number only ("save run/3", "save run/4") the lower one is behind:
  its process raises at once, the other one waits. So is a call that only looks beside a save. Of
  others process 0 raises first; where that did not help, both do. Whoever waits for process 0 then
  does so for `silence_seconds` at most.
- A process that comes for what process 0 has given up raises at once.
- A process that waits in the foreground, while another waits for it in a background save that it
  has never begun, raises at once.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from cordwood.errors import ProcessError
from cordwood.processes.coordination import Processes
from cordwood.processes.join_messages import (
    TOKEN_BYTES,
    Beats,
    came_for_else,
    compare,
    decode_arrival,
    did_not_come,
    encode_failure,
    failure_text,
    is_past,
    key_of,
    lane_name,
    named,
    no_sign_of_life,
    parse_failure,
    restarted,
    room_in,
    room_prefix,
)
from cordwood.processes.wait_log import WaitLogger

WAKE_SECONDS = 0.25  # how long one wait lasts: Ctrl-C and failures are looked for in between
_STALE_SECONDS = 0.02  # between looks at a key that has an old value
_LOOK_SECONDS = 1.0  # between looks for whatever is not the usual
# Late: others did not come in time. Passed: process 0 came for something else, and may still come.
_OPEN, _FAILED, _LATE, _PASSED = b"O", b"F", b"L", b"P"


class Joining:
    """One attempt of this process to meet the others.

    Args:
        processes: this process and the others; more than one.
        purpose: what they meet for, the same on all: "save ckpt/100".
        background: it is waited for in the background lane.
        timeout_seconds: how long to wait for all others.
        silence_seconds: how long a process that has arrived may show no sign of life.
    """

    def __init__(
        self,
        processes: Processes,
        purpose: str,
        *,
        background: bool,
        timeout_seconds: float,
        silence_seconds: float,
    ) -> None:
        self._processes = processes
        self._rooms = processes.rooms
        self._purpose = purpose
        self._lane = lane_name(background=background)
        self._timeout_seconds = timeout_seconds
        self._silence_seconds = silence_seconds
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._beats = Beats()
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._had_failures = self._arrived = False
        self._passed_since: float | None = None  # process 0 came for something else
        self._passed_text = ""
        self._is_late = False  # others did not come in time
        self._withdrawn = False  # nobody needs to be told why this one leaves
        if background:
            self._rooms.begun.append(purpose)

    def arrive(self, check: Callable[[], None]) -> str:
        """Wait for all others. Return the prefix of the room where they meet.

        Args:
            check: called in each round; what it raises ends the wait.

        Raises ProcessError: a process did not come, failed, died, or came for something else.
        """
        purpose = self._purpose.encode("utf-8", "surrogatepass")
        value = self._token + self._rooms.incarnation + purpose
        self._arrived = True
        self._processes.put(self._arrival(self._processes.index), value)
        self._refuse_restart()
        room = self._gather(check) if self._processes.index == 0 else self._listen(check, value)
        self._rooms.failed.pop(self._purpose, None)
        return room

    def beat(self, number: int) -> None:
        """Show that this process is alive."""
        key = f"cordwood/alive/{self._lane}/{self._processes.index}"
        self._processes.put(key, self._token + str(number).encode())

    def close(self) -> None:
        """On process 0: all have heard which room was opened."""
        self._forget(key_of(self._purpose, "say"))

    def leave(self, text: str) -> None:
        """Tell the others why this process does not meet them.

        Raises ProcessError where the store cannot be reached.
        """
        index, failed = self._processes.index, self._rooms.failed
        if index == 0:
            self._say_failed(self._purpose, text, kind=_LATE if self._is_late else _FAILED)
        elif not self._withdrawn:
            count = failed[self._purpose] = failed.pop(self._purpose, 0) + 1
            key = key_of(self._purpose, "failed", index)
            self._processes.put(key, encode_failure(count, text))
            self._remember(key)
        if not self._arrived:
            return
        self._processes.delete(self._arrival(index))
        said = self._processes.get(key_of(self._purpose, "say"), 0.001) if index else None
        if said is not None and said[:1] == _OPEN and self._my_part(said) == self._token:
            # Process 0 has opened the room at the same moment: it looks there now.
            failed.pop(self._purpose, None)
            self._forget(key_of(self._purpose, "failed", index))
            self._processes.put(f"{room_in(said)}failed/{index}", failure_text(text))

    # Process 0.

    def _gather(self, check: Callable[[], None]) -> str:
        self._forget(key_of(self._purpose, "say"))
        start = time.monotonic()
        missing: list[int] = []
        waiting = WaitLogger(lambda: f"{named(missing)} to {self._purpose}")
        while True:
            arrived, elsewhere = self._arrivals(self._lane)
            missing = [i for i in range(1, self._processes.count) if i not in arrived]
            self._raise_failures(arrived)
            check()
            if not missing:
                waiting.end()
                return self._open(arrived)
            for process in missing:
                if process in elsewhere:
                    self._resolve(process, *elsewhere[process])
            if time.monotonic() - start > self._timeout_seconds:
                self._is_late = True
                raise self._gave_up(missing)
            if self._is_time_to_look():
                self._raise_if_passed(missing)
            waiting.tick()
            seconds = min(self._timeout_seconds, WAKE_SECONDS)
            value = self._processes.get(self._arrival(missing[0]), seconds)
            if value is not None and not self._is_new(missing[0], value):
                time.sleep(_STALE_SECONDS)

    def _arrivals(self, lane: str) -> tuple[dict[int, bytes], dict[int, tuple[bytes, str]]]:
        """The tokens of the processes that have come for this, and what others have come for."""
        arrived: dict[int, bytes] = {}
        elsewhere: dict[int, tuple[bytes, str]] = {}
        for name, value in self._processes.list(f"cordwood/at/{lane}/").items():
            process = int(name)
            token, incarnation, purpose = decode_arrival(value)
            if process == 0 or self._rooms.joined.get((lane, process)) == token:
                continue
            if self._rooms.incarnations.setdefault(process, incarnation) != incarnation:
                raise ProcessError(restarted(process, self._purpose))
            if purpose == self._purpose and lane == self._lane:
                arrived[process] = token
            else:
                elsewhere[process] = token, purpose
        return arrived, elsewhere

    def _is_new(self, process: int, arrival: bytes) -> bool:
        token, _, what = decode_arrival(arrival)
        return self._rooms.joined.get((self._lane, process)) != token and what == self._purpose

    def _raise_failures(self, arrived: dict[int, bytes]) -> None:
        """Raise what others have announced for this, and the silence of those that were here."""
        known = self._rooms.failed.get(self._purpose, 0)
        failures = self._processes.list(key_of(self._purpose, "failed", ""))
        for name in sorted(failures, key=int):
            count, text = parse_failure(failures[name])
            if count > known:
                raise ProcessError(text)
        self._had_failures = bool(failures)
        beats = self._processes.list(f"cordwood/alive/{self._lane}/")
        silent = self._beats.silent(arrived, beats, self._silence_seconds)
        if silent:
            raise ProcessError(no_sign_of_life(silent, self._silence_seconds, self._purpose))

    def _open(self, arrived: dict[int, bytes]) -> str:
        room = self._rooms.open()
        for process, token in arrived.items():
            self._rooms.joined[self._lane, process] = token
        self._processes.delete(f"cordwood/at/{self._lane}/")
        if self._had_failures:
            self._processes.delete(key_of(self._purpose, "failed", ""))
        tokens = b"".join([arrived[i] for i in sorted(arrived)])
        self._say(self._purpose, _OPEN + struct.pack("<Q", room) + tokens)
        return room_prefix(room)

    def _resolve(self, process: int, token: bytes, other: str) -> None:
        """Decide who is behind, where another process came for something else.

        Raises ProcessError if this one is.
        """
        behind = compare(self._purpose, other)
        text = came_for_else(process, other, self._purpose)
        if behind == 1 and not other.startswith("save "):
            # Others may rightly come for that again: this one arrival is refused.
            if self._rooms.refused.get(process) != token:
                self._rooms.refused[process] = token
                key = key_of(other, "refused", process)
                self._processes.put(key, token + failure_text(text))
                self._remember(key)
            return
        if other in self._rooms.failed:
            return  # process 0 gave that up: the other one is about to hear of it
        if behind == 1:
            self._say_failed(other, text)
            return
        if behind is None and self._rooms.passed.get(process) == token:
            self._say_failed(other, text)  # the second time, neither waits for the other
        else:
            self._say(other, _PASSED + encode_failure(0, text))
        self._rooms.passed[process] = token
        raise ProcessError(text)

    def _say_failed(self, purpose: str, text: str, *, kind: bytes = _FAILED) -> None:
        failed = self._rooms.failed
        count = failed[purpose] = failed.pop(purpose, 0) + 1
        self._say(purpose, kind + encode_failure(count, text))

    def _say(self, purpose: str, message: bytes) -> None:
        self._processes.put(key_of(purpose, "say"), message)
        self._remember(key_of(purpose, "say"))

    # The others.

    def _listen(self, check: Callable[[], None], arrival: bytes) -> str:
        start, first = time.monotonic(), True
        say = key_of(self._purpose, "say")
        waiting = WaitLogger(self._whom)
        while True:
            message = self._processes.get(say, WAKE_SECONDS)
            if message is not None and message[:1] == _PASSED:
                self._hear_passed(parse_failure(message[1:])[1])
            elif message is not None:
                room = self._hear(message, was_there=first)
                if room is not None:
                    waiting.end()
                    return room
                time.sleep(_STALE_SECONDS)
            first = False
            self._raise_refusal()
            check()
            if time.monotonic() - start > self._timeout_seconds:
                self._end_of_patience()
            if self._is_time_to_look():
                self._raise_if_passed([0])
                # A key that process 0 deleted at the moment of its arrival would be missed.
                self._processes.put(self._arrival(self._processes.index), arrival)
            waiting.tick()

    def _raise_refusal(self) -> None:
        """Raise ProcessError if process 0 has refused this arrival."""
        key = key_of(self._purpose, "refused", self._processes.index)
        refusal = self._processes.get(key, 0.001)
        if refusal is not None and refusal[:TOKEN_BYTES] == self._token:
            self._withdrawn = True
            raise ProcessError(refusal[TOKEN_BYTES:].decode("utf-8", "surrogatepass"))

    def _hear_passed(self, text: str) -> None:
        """Wait a while for process 0, which came for something else; then raise ProcessError."""
        if self._passed_since is None:
            self._passed_since, self._passed_text = time.monotonic(), text
        if time.monotonic() - self._passed_since > self._silence_seconds:
            self._end_of_patience()
        time.sleep(WAKE_SECONDS / 2)

    def _hear(self, message: bytes, *, was_there: bool) -> str | None:
        """The room that process 0 has opened; None where its word is an old one."""
        if message[:1] == _OPEN:
            return room_in(message) if self._my_part(message) == self._token else None
        count, text = parse_failure(message[1:])
        known = self._rooms.failed.get(self._purpose, 0)
        if count <= known:
            return None
        if message[:1] == _LATE:
            # This process may have left out the call that process 0 gave up. One report of that is
            # enough: else two that call for one purpose again and again might never meet.
            self._rooms.failed[self._purpose] = count + was_there
        else:
            self._rooms.failed[self._purpose] = known + 1
        self._withdrawn = True
        raise ProcessError(text)

    def _my_part(self, message: bytes) -> bytes:
        start = 1 + 8 + (self._processes.index - 1) * TOKEN_BYTES
        return message[start : start + TOKEN_BYTES]

    def _end_of_patience(self) -> None:
        """Raise ProcessError: who did not come."""
        if self._passed_since is not None:
            self._withdrawn = True
            raise ProcessError(self._passed_text)
        here = {0} if self._is_here(0) else set()
        if not here:
            # Process 0 may have given up just now: it says why before it removes its arrival.
            message = self._processes.get(key_of(self._purpose, "say"), 0.001) or b""
            if message[:1] in (_FAILED, _LATE):
                self._hear(message, was_there=False)
            self._withdrawn = True  # process 0 is late: it will wait for this one, if it comes
            raise self._gave_up([0])
        here |= self._arrivals(self._lane)[0].keys()
        raise self._gave_up([i for i in range(self._processes.count) if i not in here] or [0])

    def _gave_up(self, missing: list[int]) -> ProcessError:
        text = did_not_come(missing, self._timeout_seconds, self._purpose, self._processes.index)
        return ProcessError(text)

    def _whom(self) -> str:
        with suppress(ProcessError):
            if self._is_here(0):
                return f"other processes to {self._purpose} (the log of process 0 names them)"
        return f"process 0 to {self._purpose}"

    def _is_here(self, process: int) -> bool:
        value = self._processes.list(f"cordwood/at/{self._lane}/").get(str(process))
        return value is not None and decode_arrival(value)[2] == self._purpose

    # All.

    def _refuse_restart(self) -> None:
        """Raise ProcessError if another process of this index has met the others before."""
        rooms, index = self._rooms, self._processes.index
        if rooms.is_known or index == 0:  # the store is gone with process 0
            return
        key = f"cordwood/born/{index}"
        before = self._processes.get(key, 0.001)
        if before is not None and before != rooms.incarnation:
            raise ProcessError(restarted(index, self._purpose))
        self._processes.put(key, rooms.incarnation)
        rooms.is_known = True

    def _is_time_to_look(self) -> bool:
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        return True

    def _raise_if_passed(self, awaited: Iterable[int]) -> None:
        """Raise ProcessError if others wait for this process in a save that it never began."""
        if self._lane == lane_name(background=True):
            return
        waiting = self._processes.list(f"cordwood/at/{lane_name(background=True)}/")
        for process in awaited:
            value = waiting.get(str(process))
            if value is None:
                continue
            token, _, purpose = decode_arrival(value)
            is_old = self._rooms.joined.get((lane_name(background=True), process)) == token
            if is_old or purpose in self._rooms.begun or purpose in self._rooms.failed:
                continue
            self._withdrawn = self._processes.index > 0
            raise ProcessError(is_past(self._processes.index, self._purpose, process, purpose))

    def _arrival(self, process: int) -> str:
        return f"cordwood/at/{self._lane}/{process}"

    def _forget(self, key: str) -> None:
        """Delete a key that this process may have put."""
        if key in self._rooms.said:
            self._rooms.said.remove(key)
            self._processes.delete(key)

    def _remember(self, key: str) -> None:
        """Have a key deleted one day, when nobody can be about to read it."""
        said = self._rooms.said
        if key in said:
            said.remove(key)
        said.append(key)
        if len(said) > self._rooms.MAX_SAID:
            self._processes.delete(said.popleft())
        while len(self._rooms.failed) > self._rooms.MAX_SAID:
            del self._rooms.failed[next(iter(self._rooms.failed))]
