"""Ids of saves: the start time and a random part."""

from __future__ import annotations

import re
import secrets
import time

_TIME_DIGITS = 8
_RANDOM_BYTES = 4


def new_save_id() -> str:
    """Return 16 hexadecimal digits: 8 of the seconds since 1970, and 8 random ones.

    Without locks, only the age of a save shows if it may still be running. If the clock is before
    1970 or after 2106, the id has the first or the last second of that time.
    """
    seconds = min(max(int(time.time()), 0), 16**_TIME_DIGITS - 1)
    return f"{seconds:0{_TIME_DIGITS}x}{secrets.token_hex(_RANDOM_BYTES)}"


def start_seconds_of(name: str) -> int | None:
    """Return the start time of the save whose id is in a name, in seconds since 1970, or None.

    >>> start_seconds_of("data-65f0000000001234-0-0.safetensors")
    1710227456
    """
    match = re.search(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])", name)
    return int(match[0][:_TIME_DIGITS], 16) if match else None
