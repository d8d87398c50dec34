"""What processes put into the common store when they arrive or give up, and texts about that.

The keys, below `cordwood/`: `born/<process>`, the incarnation that came first;
`at/<lane>/<process>`, who has arrived (token, incarnation, purpose), and `alive/<lane>/<process>`,
its latest beat. For each purpose: `for/<digest>/say`, what process 0 says;
`for/<digest>/failed/<process>`, why another one will not come; `for/<digest>/refused/<process>`,
which arrival of another one (token) process 0 has refused, and why. Each process waits in two
lanes at most, the foreground and the background, in each for one thing at a time.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from cordwood.encoding.digests import digest_of

TOKEN_BYTES = 8
MAX_TEXT = 4000  # characters of an error that are passed on
_MAX_NAMED = 16  # processes in a message
_SAME_CALLS = "every process must make the same calls, in the same order"


class Beats:
    """The latest beats of the processes that have arrived, and since when each is the latest."""

    def __init__(self) -> None:
        self._beats: dict[int, tuple[bytes, bytes | None, float]] = {}
        self._looked = time.monotonic()

    def silent(
        self, arrived: Mapping[int, bytes], beats: Mapping[str, bytes], silence_seconds: float
    ) -> list[int]:
        """Take note of new beats; return the processes that have shown none for that long.

        Args:
            arrived: the tokens of the processes that are here.
            beats: by the process's number, its token and the number of the beat.
            silence_seconds: without a new beat for this long a process counts as silent.
        """
        now = time.monotonic()
        paused = now - self._looked > silence_seconds / 2  # this process was: wait anew
        self._looked = now
        silent = []
        for process, token in arrived.items():
            beat = beats.get(str(process))
            if beat is not None and not beat.startswith(token):
                beat = None
            before = self._beats.get(process)
            if before is None or before[:2] != (token, beat) or paused:
                self._beats[process] = token, beat, now
            elif now - before[2] > silence_seconds:
                silent.append(process)
        return silent


def compare(purpose: str, other: str) -> int | None:
    """Return which of two purposes comes first: -1, 0 or 1; None where nothing tells.

    Purposes that differ in numbers only, as the steps of a run do: the first number that differs
    counts. Of a save and a call that only looks ("restore ...", "look for ...") the latter is
    behind: nothing is lost if it fails, and the save need not.
    """
    one, two = re.split(r"(\d+)", purpose), re.split(r"(\d+)", other)
    if any(a != b for a, b in zip_longest(one[::2], two[::2])):
        if purpose.startswith("save ") != other.startswith("save "):
            return 1 if purpose.startswith("save ") else -1
        return None
    mine, its = list(map(int, one[1::2])), list(map(int, two[1::2]))
    return (mine > its) - (mine < its)


def room_prefix(number: int) -> str:
    """Return the prefix of the keys of a room."""
    return f"cordwood/{number}/"


def room_in(message: bytes) -> str:
    """Return the prefix of the keys of the room that process 0 says it has opened."""
    (number,) = struct.unpack_from("<Q", message, 1)
    return room_prefix(number)


def named(processes: Iterable[int]) -> str:
    """Return "process 2", or "processes 1, 5 and 7"."""
    numbers = list(processes)
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = [str(number) for number in numbers[:_MAX_NAMED]]
    last = f"{len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else shown.pop()
    return f"processes {', '.join(shown)} and {last}"


def no_sign_of_life(processes: list[int], seconds: float, purpose: str) -> str:
    """Return the text of an error: processes that were here count as dead."""
    return (
        f"{named(processes)} gave no sign of life for {seconds:g} s while all met to {purpose}: "
        "dead, or cut off"
    )


def did_not_come(processes: list[int], seconds: float, purpose: str, process: int) -> str:
    """Return the text of an error: `process` has waited for others in vain."""
    return (
        f"{named(processes)} did not come within {seconds:g} s to {purpose}; process {process} "
        "gave up: every process of the job must make this call"
    )


def came_for_else(process: int, other: str, purpose: str) -> str:
    """Return the text of an error: a process came for something else than process 0."""
    return f"process {process} came to {other}, process 0 to {purpose}: {_SAME_CALLS}"


def is_past(process: int, purpose: str, other: int, later: str) -> str:
    """Return the text of an error: a process waits for one that waits elsewhere for it."""
    return (
        f"process {process} came to {purpose}, and process {other} waits for it to {later}: "
        f"{_SAME_CALLS}"
    )


def restarted(process: int, purpose: str) -> str:
    """Return the text of an error: a process was started anew, alone."""
    return (
        f"process {process} came to {purpose} and is out of step with process 0, which has met "
        "another process of that number; if it was restarted alone, restart the whole job"
    )


def lane_name(*, background: bool) -> str:
    """Return the name of a lane, as it stands in keys."""
    return "background" if background else "foreground"


def key_of(purpose: str, *parts: str | int) -> str:
    """Return a key that belongs to a purpose."""
    digest = digest_of(purpose.encode("utf-8", "surrogatepass")).hex()
    return "/".join(["cordwood", "for", digest, *map(str, parts)])


def decode_arrival(arrival: bytes) -> tuple[bytes, bytes, str]:
    """Return the token, the incarnation and the purpose of an arrival."""
    token, rest = arrival[:TOKEN_BYTES], arrival[TOKEN_BYTES:]
    return token, rest[:TOKEN_BYTES], rest[TOKEN_BYTES:].decode("utf-8", "surrogatepass")


def encode_failure(count: int, text: str) -> bytes:
    """Return a word about a failure.

    Args:
        count: how many calls for that purpose have failed there since all last met for it.
        text: of the error.
    """
    return struct.pack("<Q", count) + failure_text(text)


def failure_text(text: str) -> bytes:
    """Return the text of an error as it is passed on."""
    return text[:MAX_TEXT].encode("utf-8", "surrogatepass")


def parse_failure(word: bytes) -> tuple[int, str]:
    """Return what `encode_failure` was given."""
    (count,) = struct.unpack_from("<Q", word)
    return count, word[8:].decode("utf-8", "surrogatepass")
