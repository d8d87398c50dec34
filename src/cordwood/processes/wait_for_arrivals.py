"""The arrival of all processes for one purpose, whatever each of them has done before.

Process 0 opens a namespace for a rendezvous when all other processes have arrived for the same
purpose. Nobody counts rendezvous, so a process that left one out, or made one too many, meets the
others again at the next purpose that they share:

- If two purposes differ in a number only ("save run/3", "save run/4"), the lower one is behind: its
  process raises at once, the other one waits. A call that only reads is behind a save. For other
  pairs of purposes process 0 raises first; if that did not help, both raise. A process that still
  waits for process 0 then waits for `silence_seconds` at most.
- A process that arrives for a purpose that process 0 has given up raises at once.
- A process that waits in the foreground, while another one waits for it in a background save that
  it has never begun, raises at once.

The keys in the shared store, all below `cordwood/`:

    incarnations/<process>          the incarnation of the first process of that number
    arrivals/<channel>/<process>    an arrival: token, incarnation, purpose
    heartbeats/<channel>/<process>  the latest heartbeat: token, number
    purposes/<digest>/answer                what process 0 answers to the arrivals for a purpose
    purposes/<digest>/failed/<process>      why another process will not arrive
    purposes/<digest>/refused/<process>     which arrival process 0 has refused, and why

Each process waits in two channels at most, foreground and background, and in each channel for
one rendezvous at a time.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from cordwood.errors import ProcessError
from cordwood.processes.encode_messages import (
    TOKEN_BYTES,
    decode_arrival,
    decode_failure,
    encode_failure,
    encode_text,
    opened_namespace,
)
from cordwood.processes.heartbeats import Heartbeats
from cordwood.processes.key_value_store import Processes
from cordwood.processes.process_error_texts import process_names, restart_text, silence_text
from cordwood.processes.purposes import compare_purposes, key_of
from cordwood.threads.wait_logger import WaitLogger

_SAME_CALLS = "every process must make the same calls, in the same order"
_SAME_ROOT = (
    f"{_SAME_CALLS}, of one root; where each has a root of its own, pass shared=False to the "
    "CheckpointManager"
)

WAKE_SECONDS = 0.25  # the longest single wait: Ctrl-C and failures are checked between waits
_STALE_SECONDS = 0.02  # between two reads of a key that has an old value
_CHECK_SECONDS = 1.0  # between two checks for rare states

_FOREGROUND, _BACKGROUND = "foreground", "background"  # the channels, as keys contain them

# Late: others did not arrive. Skipped: process 0 has another purpose, and may still arrive.
_OPEN, _FAILED, _LATE, _SKIPPED = b"O", b"F", b"L", b"P"


class Arrival:
    """One attempt of this process to meet the others.

    Args:
        processes: this process and the others; more than one.
        purpose: the reason for the rendezvous, the same on all processes: "save ckpt/100".
        background: True if the rendezvous is entered in the background channel.
        timeout_seconds: how long to wait for all others.
        silence_seconds: how long a process that has arrived may send no heartbeat.
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
        self._state = processes.state
        self._purpose = purpose
        self._channel = _BACKGROUND if background else _FOREGROUND
        self._timeout_seconds = timeout_seconds
        self._silence_seconds = silence_seconds
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._heartbeats = Heartbeats()
        self._next_check = time.monotonic() + _CHECK_SECONDS
        self._had_failures = self._arrived = False
        self._skipped_since: float | None = None  # when process 0 arrived for another purpose
        self._skipped_text = ""
        self._is_late = False  # True if others did not arrive in time
        self._skip_announcement = False  # True if the others need not be informed of a failure
        if background:
            self._state.background_purposes.append(purpose)

    def arrive(self, check: Callable[[], None]) -> str:
        """Wait for all others, and return the prefix of the namespace where they meet.

        Args:
            check: called in each loop of the wait; its exception ends the wait.

        Raises ProcessError if a process does not arrive, fails, dies, or has another purpose.
        """
        purpose = self._purpose.encode("utf-8", "surrogatepass")
        arrival, index = self._token + self._state.incarnation + purpose, self._processes.index
        self._arrived = True
        self._processes.put(self._arrival_key(index), arrival)
        self._refuse_restarted_process()
        namespace = self._await_answer(check, arrival) if index else self._await_arrivals(check)
        self._state.failure_counts.pop(self._purpose, None)
        return namespace

    def send_heartbeat(self, number: int) -> None:
        """Show that this process is alive."""
        heartbeat = self._token + str(number).encode()
        self._processes.put(
            f"cordwood/heartbeats/{self._channel}/{self._processes.index}", heartbeat
        )

    def delete_answer(self) -> None:
        """Delete the answer of process 0, when all processes have read it; for process 0."""
        self._delete_announced(key_of(self._purpose, "answer"))

    def announce_failure(self, text: str) -> None:
        """Tell the others why this process does not meet them.

        Raises ProcessError if the store cannot be reached.
        """
        index, failure_counts = self._processes.index, self._state.failure_counts
        if index == 0:
            self._publish_failure(self._purpose, text, kind=_LATE if self._is_late else _FAILED)
        elif not self._skip_announcement:
            count = failure_counts[self._purpose] = failure_counts.pop(self._purpose, 0) + 1
            key = key_of(self._purpose, "failed", index)
            self._processes.put(key, encode_failure(count, text))
            self._remember(key)
        if not self._arrived:
            return
        self._processes.delete(self._arrival_key(index))
        answer = self._processes.get(key_of(self._purpose, "answer"), 0.001) if index else None
        if answer is not None and answer[:1] == _OPEN and self._token_in(answer) == self._token:
            # Process 0 has opened the namespace at the same moment: it looks for failures there.
            failure_counts.pop(self._purpose, None)
            self._delete_announced(key_of(self._purpose, "failed", index))
            self._processes.put(f"{opened_namespace(answer)}failed/{index}", encode_text(text))

    # Process 0.

    def _await_arrivals(self, check: Callable[[], None]) -> str:
        self._delete_announced(key_of(self._purpose, "answer"))
        start = time.monotonic()
        missing: list[int] = []
        wait_logger = WaitLogger(lambda: f"{process_names(missing)} to {self._purpose}")
        while True:
            arrived, elsewhere = self._read_arrivals()
            missing = [i for i in range(1, self._processes.count) if i not in arrived]
            self._raise_if_failed(arrived)
            check()
            if not missing:
                wait_logger.end()
                return self._open_namespace(arrived)
            for process in missing:
                if process in elsewhere:
                    self._resolve_conflict(process, *elsewhere[process])
            if time.monotonic() - start > self._timeout_seconds:
                self._is_late = True
                raise self._late_error(missing)
            if self._is_check_due():
                self._raise_if_save_skipped(missing)
            wait_logger.tick()
            seconds = min(self._timeout_seconds, WAKE_SECONDS)
            arrival = self._processes.get(self._arrival_key(missing[0]), seconds)
            if arrival is not None and not self._is_new(missing[0], arrival):
                time.sleep(_STALE_SECONDS)

    def _read_arrivals(self) -> tuple[dict[int, bytes], dict[int, tuple[bytes, str]]]:
        """Return the tokens of those that arrived for this, and tokens and purposes of the rest."""
        arrived: dict[int, bytes] = {}
        elsewhere: dict[int, tuple[bytes, str]] = {}
        for name, value in self._processes.list(f"cordwood/arrivals/{self._channel}/").items():
            process = int(name)
            token, incarnation, purpose = decode_arrival(value)
            if process == 0 or self._state.joined.get((self._channel, process)) == token:
                continue
            if self._state.incarnations.setdefault(process, incarnation) != incarnation:
                raise ProcessError(restart_text(process, self._purpose))
            if purpose == self._purpose:
                arrived[process] = token
            else:
                elsewhere[process] = token, purpose
        return arrived, elsewhere

    def _is_new(self, process: int, arrival: bytes) -> bool:
        token, _, purpose = decode_arrival(arrival)
        return (
            self._state.joined.get((self._channel, process)) != token and purpose == self._purpose
        )

    def _raise_if_failed(self, arrived: dict[int, bytes]) -> None:
        """Raise ProcessError if another process announced a failure, or stopped its heartbeat."""
        reported = self._state.failure_counts.get(self._purpose, 0)
        failures = self._processes.list(key_of(self._purpose, "failed", ""))
        for name in sorted(failures, key=int):
            count, text = decode_failure(failures[name])
            if count > reported:
                raise ProcessError(text)
        self._had_failures = bool(failures)
        beats = self._processes.list(f"cordwood/heartbeats/{self._channel}/")
        silent = self._heartbeats.silent(arrived, beats, self._silence_seconds)
        if silent:
            raise ProcessError(silence_text(silent, self._silence_seconds, self._purpose))

    def _open_namespace(self, arrived: dict[int, bytes]) -> str:
        number = self._state.new_namespace()
        for process, token in arrived.items():
            self._state.joined[self._channel, process] = token
        self._processes.delete(f"cordwood/arrivals/{self._channel}/")
        if self._had_failures:
            self._processes.delete(key_of(self._purpose, "failed", ""))
        tokens = b"".join([arrived[i] for i in sorted(arrived)])
        self._publish(self._purpose, _OPEN + struct.pack("<Q", number) + tokens)
        return f"cordwood/{number}/"

    def _resolve_conflict(self, process: int, token: bytes, other: str) -> None:
        """Decide which process is behind, where another one arrived for another purpose.

        Raises ProcessError if process 0 is behind.
        """
        order = compare_purposes(self._purpose, other)
        is_same_call = self._purpose.partition(" of ")[0] == other.partition(" of ")[0]
        advice = _SAME_ROOT if is_same_call else _SAME_CALLS
        text = f"process {process} came to {other}, process 0 to {self._purpose}: {advice}"
        if order == 1 and not other.startswith("save "):
            # Other processes may arrive for that again, rightly: only this arrival is refused.
            if self._state.refused.get(process) != token:
                self._state.refused[process] = token
                key = key_of(other, "refused", process)
                self._processes.put(key, token + encode_text(text))
                self._remember(key)
            return
        if other in self._state.failure_counts:
            return  # process 0 gave that up: the other process is about to read so
        if order == 1:
            self._publish_failure(other, text)
            return
        if order is None and self._state.skipped.get(process) == token:
            self._publish_failure(other, text)  # the second time, neither waits for the other
        else:
            self._publish(other, _SKIPPED + encode_failure(0, text))
        self._state.skipped[process] = token
        raise ProcessError(text)

    def _publish_failure(self, purpose: str, text: str, *, kind: bytes = _FAILED) -> None:
        failure_counts = self._state.failure_counts
        count = failure_counts[purpose] = failure_counts.pop(purpose, 0) + 1
        self._publish(purpose, kind + encode_failure(count, text))

    def _publish(self, purpose: str, answer: bytes) -> None:
        self._processes.put(key_of(purpose, "answer"), answer)
        self._remember(key_of(purpose, "answer"))

    # The other processes.

    def _await_answer(self, check: Callable[[], None], arrival: bytes) -> str:
        start, is_first = time.monotonic(), True
        key = key_of(self._purpose, "answer")
        wait_logger = WaitLogger(self._awaited_text)
        while True:
            answer = self._processes.get(key, WAKE_SECONDS)
            if answer is not None and answer[:1] == _SKIPPED:
                self._wait_after_skip(decode_failure(answer[1:])[1])
            elif answer is not None:
                namespace = self._receive(answer, was_there=is_first)
                if namespace is not None:
                    wait_logger.end()
                    return namespace
                time.sleep(_STALE_SECONDS)
            is_first = False
            self._raise_if_refused()
            check()
            if time.monotonic() - start > self._timeout_seconds:
                self._raise_late()
            if self._is_check_due():
                self._raise_if_save_skipped([0])
                # Process 0 may have deleted the key at the moment of the arrival: put it again.
                self._processes.put(self._arrival_key(self._processes.index), arrival)
            wait_logger.tick()

    def _raise_if_refused(self) -> None:
        """Raise ProcessError if process 0 has refused this arrival."""
        index = self._processes.index
        refusal = self._processes.get(key_of(self._purpose, "refused", index), 0.001)
        if refusal is not None and refusal[:TOKEN_BYTES] == self._token:
            self._skip_announcement = True
            raise ProcessError(refusal[TOKEN_BYTES:].decode("utf-8", "surrogatepass"))

    def _wait_after_skip(self, text: str) -> None:
        """Wait a while for process 0, which has another purpose; raise ProcessError after that."""
        if self._skipped_since is None:
            self._skipped_since, self._skipped_text = time.monotonic(), text
        if time.monotonic() - self._skipped_since > self._silence_seconds:
            self._raise_late()
        time.sleep(WAKE_SECONDS / 2)

    def _receive(self, answer: bytes, *, was_there: bool) -> str | None:
        """Return the namespace that process 0 has opened; None if its answer is an old one."""
        if answer[:1] == _OPEN:
            return opened_namespace(answer) if self._token_in(answer) == self._token else None
        count, text = decode_failure(answer[1:])
        reported = self._state.failure_counts.get(self._purpose, 0)
        if count <= reported:
            return None
        if answer[:1] == _LATE:
            # This process may have left out the call that process 0 gave up. One report is enough:
            # else two that call for one purpose again and again might never meet.
            self._state.failure_counts[self._purpose] = count + was_there
        else:
            self._state.failure_counts[self._purpose] = reported + 1
        self._skip_announcement = True
        raise ProcessError(text)

    def _token_in(self, answer: bytes) -> bytes:
        start = 1 + 8 + (self._processes.index - 1) * TOKEN_BYTES
        return answer[start : start + TOKEN_BYTES]

    def _raise_late(self) -> None:
        """Raise ProcessError that names the processes that did not arrive."""
        if self._skipped_since is not None:
            self._skip_announcement = True
            raise ProcessError(self._skipped_text)
        arrived = {0} if self._has_process_0_arrived() else set()
        if not arrived:
            # Process 0 may have given up just now: it answers before it deletes its arrival.
            answer = self._processes.get(key_of(self._purpose, "answer"), 0.001)
            if answer is not None and answer[:1] in (_FAILED, _LATE):
                self._receive(answer, was_there=False)
            # Process 0 is late: it will wait for this one, if it arrives.
            self._skip_announcement = True
            raise self._late_error([0])
        arrived |= self._read_arrivals()[0].keys()
        raise self._late_error([i for i in range(self._processes.count) if i not in arrived] or [0])

    def _late_error(self, missing: list[int]) -> ProcessError:
        return ProcessError(
            f"{process_names(missing)} did not come within {self._timeout_seconds:g} s to "
            f"{self._purpose}; process {self._processes.index} gave up: every process of the job "
            "must make this call"
        )

    def _awaited_text(self) -> str:
        with suppress(ProcessError):
            if self._has_process_0_arrived():
                return f"other processes to {self._purpose} (the log of process 0 names them)"
        return f"process 0 to {self._purpose}"

    def _has_process_0_arrived(self) -> bool:
        arrival = self._processes.list(f"cordwood/arrivals/{self._channel}/").get("0")
        return arrival is not None and decode_arrival(arrival)[2] == self._purpose

    # All processes.

    def _refuse_restarted_process(self) -> None:
        """Raise ProcessError if an earlier process of this index has met the others."""
        state, index = self._state, self._processes.index
        if state.is_registered or index == 0:  # the store is lost with process 0
            return
        key = f"cordwood/incarnations/{index}"
        incarnation = self._processes.get(key, 0.001)
        if incarnation is not None and incarnation != state.incarnation:
            raise ProcessError(restart_text(index, self._purpose))
        self._processes.put(key, state.incarnation)
        state.is_registered = True

    def _is_check_due(self) -> bool:
        is_due = time.monotonic() >= self._next_check
        if is_due:
            self._next_check = time.monotonic() + _CHECK_SECONDS
        return is_due

    def _raise_if_save_skipped(self, awaited: Iterable[int]) -> None:
        """Raise ProcessError if others wait for this process in a save that it never began."""
        if self._channel == _BACKGROUND:
            return
        arrivals = self._processes.list(f"cordwood/arrivals/{_BACKGROUND}/")
        for process in awaited:
            arrival = arrivals.get(str(process))
            if arrival is None:
                continue
            token, _, purpose = decode_arrival(arrival)
            if self._state.joined.get((_BACKGROUND, process)) == token:
                continue
            if purpose in self._state.background_purposes or purpose in self._state.failure_counts:
                continue
            index = self._processes.index
            self._skip_announcement = index > 0
            raise ProcessError(
                f"process {index} came to {self._purpose}, and process {process} waits for it to "
                f"{purpose}: {_SAME_CALLS}"
            )

    def _arrival_key(self, process: int) -> str:
        return f"cordwood/arrivals/{self._channel}/{process}"

    def _delete_announced(self, key: str) -> None:
        """Delete a key if this process has put it."""
        if key in self._state.announced_keys:
            self._state.announced_keys.remove(key)
            self._processes.delete(key)

    def _remember(self, key: str) -> None:
        """Note a key that this process has put; delete the oldest, which nobody reads any more."""
        old_key = self._state.remember(key)
        if old_key is not None:
            self._processes.delete(old_key)
