"""The names of steps, and the numbers in them."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, SupportsIndex

from cordwood.formats.suffixes import suffix_of

MAX_STEP = 10**18 - 1
MAX_STEPS_OPENED = 20  # to find the newest that is whole

_WORDS = "(?:global_)?steps?|checkpoint|ckpt|run|epoch|iter(?:ation)?"
_STEP = re.compile(rf"((?:(?:{_WORDS})[-_]?)?)0*([0-9]{{1,18}})", re.IGNORECASE)
# The words in the names of steps that a manager reads: its own and Orbax's, Flax's, and eFormer's.
_ENTRY_WORDS = ("", "checkpoint_", "run-")
_LAST_DIGITS = re.compile(r"[0-9]{1,18}$")
_CACHED_NAMES = 1 << 14  # a manager parses all names of its root at each save


class StepName(NamedTuple):
    """A name of a step, in its parts.

    Attributes:
        word: the part before the number, such as `checkpoint_`; "" for none.
        number: the number of the step.
        is_entry: True for the names that a manager reads: `100`, `checkpoint_100`, `run-100`.
        has_prefix: True for names such as `ckpt_100`, which Orbax gives by its `step_prefix`.
    """

    word: str
    number: int
    is_entry: bool
    has_prefix: bool


@lru_cache(_CACHED_NAMES)
def parse_step_name(name: str) -> StepName | None:
    """Return the parts of the name of a step, with or without a suffix; None for another name.

    >>> [parse_step_name(name) for name in ("run-0100", "best")]
    [StepName(word='run-', number=100, is_entry=True, has_prefix=False), None]
    """
    match = _STEP.fullmatch(name)
    is_entry = match is not None and match[1] in _ENTRY_WORDS
    has_prefix = match is not None and match[1].endswith("_")
    match = match or _STEP.fullmatch(name.removesuffix(suffix_of(name)))
    return None if match is None else StepName(match[1], int(match[2]), is_entry, has_prefix)


def number_in_name(name: str) -> int | None:
    """Return the number of the step that a file or directory of that name is; None: of no step.

    >>> [number_in_name(name) for name in ("0100", "step_7.msgpack", "best")]
    [100, 7, None]
    """
    step = parse_step_name(name)
    return None if step is None else step.number


def step_in_name(name: str) -> int | None:
    """Return the number of the step that a manager reads by that name; None for other names.

    >>> [step_in_name(name) for name in ("100", "checkpoint_100", "run-100", "step_100")]
    [100, 100, 100, None]
    """
    step = parse_step_name(name)
    return step.number if step is not None and step.is_entry else None


def possible_step(name: str) -> int | None:
    """Return the number that an entry of a root has as a step; None if none has such a name.

    Of those that `step_in_name` does not know, only the steps of Orbax are steps.

    >>> [possible_step(name) for name in ("100", "ckpt_0100", "step-100", "weights_100")]
    [100, 100, None, None]
    """
    step = parse_step_name(name)
    return step.number if step is not None and (step.is_entry or step.has_prefix) else None


def is_named_step(name: str) -> bool:
    """Return whether a name is that of a step, and more than a number."""
    step = parse_step_name(name)
    return step is not None and step.word != ""


def sorted_steps(names: Iterable[str], *, extra: Iterable[str] = ()) -> list[str]:
    """Return the names that are names of steps, the oldest first, and those in `extra`.

    >>> sorted_steps(["step_20", "step_0", "100", "run-7.msgpack", "notes"], extra=["my-9", "2b"])
    ['2b', 'step_0', 'run-7.msgpack', 'my-9', 'step_20', '100']
    """
    numbers: dict[str, int | None] = {name: _last_number(name) for name in extra}
    for name in names:
        step = parse_step_name(name)
        if step is not None:
            numbers[name] = step.number
    # Those without a number come first.
    return sorted(numbers, key=lambda name: (numbers[name] is not None, numbers[name] or 0, name))


def _last_number(name: str) -> int | None:
    match = _LAST_DIGITS.search(name)
    return None if match is None else int(match[0])


def step_name(step: int) -> str:
    """Return the name by which a manager saves a step: its number."""
    return str(step)


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
