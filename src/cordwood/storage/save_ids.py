"""What a save is called: when it began, and something random."""

from __future__ import annotations

import re
import secrets
import time

_TIME_DIGITS = 8
_RANDOM_BYTES = 4


def new_save_id() -> str:
    """16 hexadecimal digits: the seconds since 1970, and as many random ones.

    Where there are no locks, the age of a save is all that tells whether it may yet be alive. A
    clock that stands before 1970, or after 2106, gives the first or the last second between.
    """
    seconds = min(max(int(time.time()), 0), 16**_TIME_DIGITS - 1)
    return f"{seconds:0{_TIME_DIGITS}x}{secrets.token_hex(_RANDOM_BYTES)}"


def start_seconds_of(name: str) -> int | None:
    """When the save began whose id is in a name, in seconds since 1970; None where there is none.

    >>> start_seconds_of("data-65f0000000001234-0-0.safetensors")
    1710227456
    """
    found = re.search(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])", name)
    return int(found[0][:_TIME_DIGITS], 16) if found else None
