"""Directories of steps: one checkpoint for each step of a training run, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cordwood.formats.registry import suffix_of

MAX_STEPS_OPENED = 20  # to find the newest that is whole

_WORDS = "(?:global_)?steps?|checkpoint|ckpt|run|epoch|iter(?:ation)?"
_STEP = re.compile(rf"(?P<word>(?:{_WORDS})[-_]?)?(?P<number>[0-9]{{1,18}})", re.IGNORECASE)
# The names of steps that a manager reads: its own, Orbax's, Flax's and eFormer's.
STEP_ENTRY = re.compile(r"(checkpoint_|run-|)0*([0-9]{1,18})")
_LAST_DIGITS = re.compile(r"[0-9]{1,18}$")
_MOST_LISTED = 8


def sorted_steps(names: Iterable[str], *, extra: Iterable[str] = ()) -> list[str]:
    """Return the names that are names of steps, the oldest first, and those in `extra`.

    >>> sorted_steps(["step_20", "step_3", "100", "run-7.msgpack", "notes"], extra=["my-9"])
    ['step_3', 'run-7.msgpack', 'my-9', 'step_20', '100']
    """
    numbers = {name: _last_number(name) for name in extra}
    for name in names:
        match = _match(name)
        if match is not None:
            numbers[name] = int(match["number"])
    return sorted(numbers, key=lambda name: (numbers[name], name))


def step_number(name: str) -> int | None:
    """Return the number of the step that a file or directory of that name is; None: of no step.

    >>> [step_number(name) for name in ("0100", "run-7.msgpack", "best")]
    [100, 7, None]
    """
    match = _match(name)
    return None if match is None else int(match["number"])


def step_in_name(name: str) -> int | None:
    """Return the number of the step whose entry has that name; None where no tool names steps so.

    >>> [step_in_name(name) for name in ("100", "checkpoint_100", "run-100", "logs")]
    [100, 100, 100, None]
    """
    match = STEP_ENTRY.fullmatch(name)
    return None if match is None else int(match[2])


def _last_number(name: str) -> int:
    match = _LAST_DIGITS.search(name)
    return int(match[0]) if match is not None else -1


def is_named_step(name: str) -> bool:
    """Return whether a name is that of a step, and more than a number."""
    match = _match(name)
    return match is not None and match["word"] is not None


def _match(name: str) -> re.Match[str] | None:
    return _STEP.fullmatch(name.removesuffix(suffix_of(name)))


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message.

    >>> listed([str(i) for i in range(100)])
    '0, 1, 2, 3, ..., 96, 97, 98, 99'
    """
    if len(names) <= _MOST_LISTED:
        return ", ".join(names)
    half = _MOST_LISTED // 2
    return ", ".join([*names[:half], "...", *names[-half:]])
