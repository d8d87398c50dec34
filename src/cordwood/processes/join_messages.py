"""The messages of joining processes in the shared store, and the error texts about joining.

The keys, all below `cordwood/`:

    incarnations/<process>          the incarnation of the first process of that number
    arrivals/<lane>/<process>       an arrival: token, incarnation, purpose
    heartbeats/<lane>/<process>     the latest heartbeat: token, number
    purposes/<digest>/answer                what process 0 answers to the arrivals for a purpose
    purposes/<digest>/failed/<process>      why another process will not arrive
    purposes/<digest>/refused/<process>     which arrival process 0 has refused, and why

Each process waits in two lanes at most, the foreground and the background, and in each lane for
one rendezvous at a time.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from cordwood.encoding.digests import digest_of

TOKEN_BYTES = 8
MAX_TEXT = 4000  # characters of an error that are sent
_MAX_NAMED = 16  # processes in a message
_SAME_CALLS = "every process must make the same calls, in the same order"


class Heartbeats:
    """The latest heartbeat of each process that has arrived, and when it was first seen."""

    def __init__(self) -> None:
        self._beats: dict[int, tuple[bytes, bytes | None, float]] = {}
        self._checked = time.monotonic()

    def silent(
        self, arrived: Mapping[int, bytes], beats: Mapping[str, bytes], silence_seconds: float
    ) -> list[int]:
        """Note new heartbeats, and return the processes without one for `silence_seconds`.

        Args:
            arrived: the processes that have arrived, with their tokens; b"" for any token.
            beats: by the number of the process, its token and what changes with each heartbeat.
            silence_seconds: a process without a new heartbeat for this long is silent.
        """
        time_now = time.monotonic()
        paused = time_now - self._checked > silence_seconds / 2  # this process was: wait again
        self._checked = time_now
        silent = []
        for process, token in arrived.items():
            beat = beats.get(str(process))
            if beat is not None and not beat.startswith(token):
                beat = None
            before = self._beats.get(process)
            if before is None or before[:2] != (token, beat) or paused:
                self._beats[process] = token, beat, time_now
            elif time_now - before[2] > silence_seconds:
                silent.append(process)
        return silent


def compare_purposes(purpose: str, other: str) -> int | None:
    """Return -1, 0 or 1 as a purpose comes before, with or after another; None if unordered.

    If the purposes differ in numbers only, as the steps of a run do, the first number that differs
    decides. A call that only reads ("restore ...", "look for ...") comes before a save: if it
    fails, nothing is lost, and the save need not fail.
    """
    parts, other_parts = re.split(r"(\d+)", purpose), re.split(r"(\d+)", other)
    if any(a != b for a, b in zip_longest(parts[::2], other_parts[::2])):
        if purpose.startswith("save ") != other.startswith("save "):
            return 1 if purpose.startswith("save ") else -1
        return None
    numbers, other_numbers = list(map(int, parts[1::2])), list(map(int, other_parts[1::2]))
    return (numbers > other_numbers) - (numbers < other_numbers)


def namespace_prefix(number: int) -> str:
    """Return the prefix of the keys of a namespace."""
    return f"cordwood/{number}/"


def opened_namespace(answer: bytes) -> str:
    """Return the prefix of the namespace that process 0 has opened, as it answered."""
    (number,) = struct.unpack_from("<Q", answer, 1)
    return namespace_prefix(number)


def process_names(processes: Iterable[int]) -> str:
    """Return "process 2", or "processes 1, 5 and 7"."""
    numbers = list(processes)
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = [str(number) for number in numbers[:_MAX_NAMED]]
    last = f"{len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else shown.pop()
    return f"processes {', '.join(shown)} and {last}"


def silence_text(processes: list[int], seconds: float, purpose: str) -> str:
    """Return the error text for processes that had arrived and then sent no heartbeat."""
    return (
        f"{process_names(processes)} gave no sign of life for {seconds:g} s while all met to "
        f"{purpose}: dead, or cut off"
    )


def late_text(processes: list[int], seconds: float, purpose: str, process: int) -> str:
    """Return the error text for processes that did not arrive while `process` waited."""
    return (
        f"{process_names(processes)} did not come within {seconds:g} s to {purpose}; process "
        f"{process} gave up: every process of the job must make this call"
    )


def other_purpose_text(process: int, other: str, purpose: str) -> str:
    """Return the error text for a process that arrived for another purpose than process 0."""
    return f"process {process} came to {other}, process 0 to {purpose}: {_SAME_CALLS}"


def skipped_save_text(process: int, purpose: str, other: int, later: str) -> str:
    """Return the error text for a process that another one waits for in a save it never began."""
    return (
        f"process {process} came to {purpose}, and process {other} waits for it to {later}: "
        f"{_SAME_CALLS}"
    )


def restart_text(process: int, purpose: str) -> str:
    """Return the error text for a process that was restarted while the others were not."""
    return (
        f"process {process} came to {purpose} and is out of step with process 0, which has met "
        "another process of that number; if it was restarted alone, restart the whole job"
    )


def lane_name(*, background: bool) -> str:
    """Return the name of a lane, as keys contain it."""
    return "background" if background else "foreground"


def key_of(purpose: str, *parts: str | int) -> str:
    """Return a key that belongs to a purpose."""
    digest = digest_of(purpose.encode("utf-8", "surrogatepass")).hex()
    return "/".join(["cordwood", "purposes", digest, *map(str, parts)])


def decode_arrival(arrival: bytes) -> tuple[bytes, bytes, str]:
    """Return the token, the incarnation and the purpose of an arrival."""
    token, rest = arrival[:TOKEN_BYTES], arrival[TOKEN_BYTES:]
    return token, rest[:TOKEN_BYTES], rest[TOKEN_BYTES:].decode("utf-8", "surrogatepass")


def encode_failure(count: int, text: str) -> bytes:
    """Return a failure as bytes.

    Args:
        count: how many calls for the purpose have failed on this process since all last met for it.
        text: the text of the error.
    """
    return struct.pack("<Q", count) + encode_text(text)


def encode_text(text: str) -> bytes:
    """Return the text of an error as bytes, shortened."""
    return text[:MAX_TEXT].encode("utf-8", "surrogatepass")


def decode_failure(failure: bytes) -> tuple[int, str]:
    """Return the count and the text that `encode_failure` was given."""
    (count,) = struct.unpack_from("<Q", failure)
    return count, failure[8:].decode("utf-8", "surrogatepass")
