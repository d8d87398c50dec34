"""A step as it is stored: its name, and the record beside its tree."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, StepError, newer_version_error
from cordwood.formats.table import suffix_of

MAX_STEP = 10**18 - 1
MAX_STEPS_OPENED = 20  # to find the newest that is whole

_WORDS = "(?:global_)?steps?|checkpoint|ckpt|run|epoch|iter(?:ation)?"
_STEP = re.compile(rf"((?:(?:{_WORDS})[-_]?)?)0*([0-9]{{1,18}})", re.IGNORECASE)
# The words in the names of steps that a manager reads: its own and Orbax's, Flax's, and eFormer's.
_ENTRY_WORDS = ("", "checkpoint_", "run-")
_LAST_DIGITS = re.compile(r"[0-9]{1,18}$")
_MOST_LISTED = 8
_CACHED_NAMES = 1 << 14  # a manager parses all names of its root at each save


class StepName(NamedTuple):
    """A name of a step, in its parts.

    Attributes:
        word: the part before the number, such as `checkpoint_`; "" for none.
        number: the number of the step.
        is_entry: True for the names that a manager reads: `100`, `checkpoint_100`, `run-100`.
    """

    word: str
    number: int
    is_entry: bool


@lru_cache(_CACHED_NAMES)
def parse_step_name(name: str) -> StepName | None:
    """Return the parts of the name of a step, with or without a suffix; None for another name.

    >>> [parse_step_name(name) for name in ("run-0100", "best")]
    [StepName(word='run-', number=100, is_entry=True), None]
    """
    match = _STEP.fullmatch(name)
    is_entry = match is not None and match[1] in _ENTRY_WORDS
    match = match or _STEP.fullmatch(name.removesuffix(suffix_of(name)))
    return None if match is None else StepName(match[1], int(match[2]), is_entry)


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


def is_named_step(name: str) -> bool:
    """Return whether a name is that of a step, and more than a number."""
    step = parse_step_name(name)
    return step is not None and step.word != ""


def sorted_steps(names: Iterable[str], *, extra: Iterable[str] = ()) -> list[str]:
    """Return the names that are names of steps, the oldest first, and those in `extra`.

    >>> sorted_steps(["step_20", "step_3", "100", "run-7.msgpack", "notes"], extra=["my-9"])
    ['step_3', 'run-7.msgpack', 'my-9', 'step_20', '100']
    """
    numbers = {name: _last_number(name) for name in extra}
    for name in names:
        step = parse_step_name(name)
        if step is not None:
            numbers[name] = step.number
    return sorted(numbers, key=lambda name: (numbers[name], name))


def _last_number(name: str) -> int:
    match = _LAST_DIGITS.search(name)
    return int(match[0]) if match is not None else -1


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


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message.

    >>> listed([str(i) for i in range(100)])
    '0, 1, 2, 3, ..., 96, 97, 98, 99'
    """
    if len(names) <= _MOST_LISTED:
        return ", ".join(names)
    half = _MOST_LISTED // 2
    return ", ".join([*names[:half], "...", *names[-half:]])


# The record of a step: one JSON string in the metadata of the checkpoint

KEY = "cordwood-step"  # in the checkpoint's metadata
PREFIX_KEY = "cordwood-prefix"  # the prefix by which the job restores the tree of its run
_MEMBERS = ["version", "step", "time", "metrics", "extras", "items", "chain"]
_VERSION = 1
_MAX_DEPTH = 200  # how deep an error searches for a value that is not JSON
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Record(NamedTuple):
    """The data of a step beside its tree."""

    step: int
    time: float  # when its save began, in seconds since 1970
    metrics: Mapping[str, float]
    extras: Any  # JSON
    items: Mapping[str, Any]  # by name, the states of all processes
    chain: int = 0  # how many earlier steps may share files with it; 0: all files are its own


def encode_record(record: Record) -> str:
    """Return a record as one line of JSON; metrics that are NaN or infinite become strings."""
    metrics = {
        name: value if math.isfinite(value) else str(value)
        for name, value in record.metrics.items()
    }
    step, time, _, extras, items, chain = record
    values = (_VERSION, step, time, metrics, extras, items, chain)
    return json.dumps(
        dict(zip(_MEMBERS, values, strict=True)), allow_nan=False, separators=(",", ":")
    )


def decode_record(text: str, where: str) -> Record:
    """Return the record that `encode_record` encoded.

    Args:
        text: the encoded record.
        where: its place, for errors.

    Raises FormatError, or UnsupportedFormatError for a newer version.
    """
    members = parse_json(text, where)
    newer = members.get("version") if type(members) is dict else None
    if type(newer) is int and newer > _VERSION:
        raise newer_version_error(f"{where}: version {newer} is newer", _VERSION)
    if type(members) is not dict or list(members) != _MEMBERS:
        raise FormatError(f"{where}: expected an object of {', '.join(_MEMBERS)}")
    version, step, time, metrics, extras, items, chain = members.values()
    if type(version) is not int or version != _VERSION:
        raise FormatError(f"{where}: expected version {_VERSION}, found {version!r:.40}")
    if type(step) is not int or step < 0:
        raise FormatError(f"{where}: step: expected an integer of at least 0, found {step!r:.40}")
    if type(time) not in (int, float):
        raise FormatError(f"{where}: time: expected a number, found {time!r:.40}")
    if type(metrics) is not dict:
        raise FormatError(f"{where}: metrics: expected an object")
    if type(items) is not dict:
        raise FormatError(f"{where}: items: expected an object")
    if type(chain) is not int or chain < 0:
        raise FormatError(f"{where}: chain: expected an integer of at least 0, found {chain!r:.40}")
    return Record(
        step,
        _number(time, f"{where}: time"),
        {name: _number(value, f"{where}: metrics: {name}") for name, value in metrics.items()},
        extras,
        items,
        chain,
    )


def _number(value: Any, where: str) -> float:
    if type(value) in (int, float):
        with suppress(OverflowError):
            return float(value)
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise FormatError(f"{where}: expected a number, found {value!r:.40}")


def wrong_step(record: Record, name: str) -> str:
    """Return the error text for a directory that is named as one step and holds another."""
    saved = record.step
    return (
        f"{name} holds step {saved}: it is a copy of that, was renamed, or was mixed up when a "
        f"disk was repaired; rename it to {saved} if that is meant, else remove it. "
        "cordwood.load reads it as it is"
    )


def require_same(saved: Record, new: Record, *, root: str) -> None:
    """Raise StepError if a saved step is saved again with other metrics or extras.

    A second call without metrics or extras is not an error.
    """
    if new.metrics and str(new.metrics) != str(saved.metrics):  # where NaN is NaN
        what, before, after = "metrics", str(saved.metrics), str(new.metrics)
    elif new.extras is not None and new.extras != saved.extras:
        what, before, after = "extras", str(saved.extras), str(new.extras)
    else:
        return
    raise StepError(
        f"{root}: step {saved.step} has just been saved with the {what} {before:.200}, and cannot "
        f"be given {after:.200} now: give them to the first save of a step"
    )


def as_metrics(metrics: Mapping[str, SupportsFloat] | None) -> dict[str, float]:
    """Return metrics as floats; arrays of one element are converted too. Raises TypeError."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"metrics: expected a dict of numbers by name, found {metrics!r:.80}")
    floats = {}
    for name, value in (metrics or {}).items():
        if type(name) is not str:
            raise TypeError(f"metrics: expected names that are str, found {name!r:.80}")
        try:
            floats[name] = float(value)
        except (TypeError, ValueError, OverflowError) as e:
            raise TypeError(f"metrics: {name}: expected a number, found {value!r:.80}") from e
    return floats


def as_json(value: Any, where: str) -> Any:
    """Return a copy of a value that JSON gives back unchanged.

    Args:
        value: the value.
        where: its name, for the error.

    Raises TypeError for other values; it names the first one that JSON cannot hold.
    """
    try:
        copy = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"{where}: expected values that JSON holds: {_not_json(value) or e}") from e
    if copy != value:
        raise TypeError(
            f"{where}: expected values that JSON gives back as they are: {_not_json(value)}"
        )
    return copy


_ADVICE = "dicts with keys that are str, lists, str, int, finite float, bool and None"


def _not_json(value: Any, path: str = "", depth: int = 0) -> str:
    """Return the place of the first value that JSON does not keep, and advice; "" for none."""
    at = path or "it"
    if type(value) in (dict, list) and depth < _MAX_DEPTH:
        is_dict = type(value) is dict
        for key, each in value.items() if is_dict else enumerate(value):
            if is_dict and type(key) is not str:
                return f"{at} has the key {key!r:.80}, a {type(key).__name__}; JSON holds {_ADVICE}"
            problem = _not_json(each, f"{path}[{key!r}]", depth + 1)
            if problem:
                return problem
        return ""
    if value is None or type(value) in (str, int, bool):
        return ""
    if type(value) is float and math.isfinite(value):
        return ""
    hint = f"JSON holds {_ADVICE}"
    if hasattr(value, "tolist"):
        hint = "call .tolist() on it, or save it in the tree or in items="
    elif type(value) is tuple:
        hint = "make it a list"
    problem = f"{value!r:.80}" if type(value) in (float, tuple) else f"a {type(value).__name__}"
    return f"{at} is {problem}; {hint}"
