"""The purposes of rendezvous: their order, and their keys."""

from __future__ import annotations

import re
from itertools import zip_longest

from cordwood.encoding.digests import digest_of


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


def key_of(purpose: str, *parts: str | int) -> str:
    """Return a key that belongs to a purpose."""
    digest = digest_of(purpose.encode("utf-8", "surrogatepass")).hex()
    return "/".join(["cordwood", "purposes", digest, *map(str, parts)])
