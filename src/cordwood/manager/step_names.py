"""The names of the directories of steps, and the numbers in them."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from typing import Any, SupportsIndex

MAX_STEP = 10**18 - 1

_NAME = re.compile(r"0|[1-9][0-9]{0,17}")


def step_name(step: int) -> str:
    """Return the name of the directory of a step: its number."""
    return str(step)


def step_from_name(name: str) -> int | None:
    """Return the step whose directory has a name; None for any other name.

    >>> [step_from_name(name) for name in ("0", "1200", "0007", "logs")]
    [0, 1200, None, None]
    """
    return int(name) if _NAME.fullmatch(name) else None


def step_number(step: SupportsIndex) -> int:
    """Return the number of a step, which may be an integer of numpy or jax.

    Raises TypeError for other types, ValueError for a number out of range.
    """
    try:
        number = operator.index(step)
    except TypeError:
        short = step is None or isinstance(step, str | float | complex)
        found_text = f"{step!r:.80}" if short else f"a value of type {type(step).__name__}"
        hint = ": the first argument is the step; pass a tree to restore into as like="
        hint = "" if short else hint
        raise TypeError(f"step: expected an integer, found {found_text}{hint}") from None
    if not 0 <= number <= MAX_STEP:
        raise ValueError(f"step: expected 0 to {MAX_STEP}, found {number}")
    return number


def policy_steps(policy: str, steps: Collection[SupportsIndex]) -> frozenset[int]:
    """Return the steps that a policy names. Raises TypeError, ValueError."""
    try:
        return frozenset([step_number(step) for step in steps])
    except TypeError as e:
        raise TypeError(f"{policy}: expected several steps, as [5, 7], found {steps!r:.80}") from e


def policy_count(policy: str, count: Any) -> int:
    """Return the count of a policy as an int. Raises TypeError, ValueError."""
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"{policy}: count: expected an integer, found {count!r:.80}") from None
    if not number > 0:
        raise ValueError(f"{policy}: count: expected more than 0, found {count!r:.80}")
    return number
