"""The types of the fields of recipes and rules, and limits of their sizes. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeGuard

from cordwood.recipes.size_expressions import MAX_VALUE, Number

MAX_ITEMS = 10_000  # of a list or mapping
MAX_TEXT = 1000  # characters of a name, of axes, or of an expression

SHOWN = 80  # characters of a value in a message


class FieldType(NamedTuple):
    """A type of a field: in words, and as a function that returns True for a value that fits."""

    text: str
    fits: Callable[[object], bool]


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def is_size_number(value: object) -> TypeGuard[Number]:
    """Return True for a number that may be a size: finite, and not too large."""
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < MAX_VALUE
    return isinstance(value, int) and abs(value) < MAX_VALUE


def _is_size(value: object) -> bool:
    return isinstance(value, str) or is_size_number(value)


def _is_list(value: object, fits: Callable[[object], bool] = lambda _: True) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return False
    return len(value) <= MAX_ITEMS and all(map(fits, value))


def is_strings(value: object) -> bool:
    """Return True for a list of strings."""
    return _is_list(value, _is_string)


def _is_sizes(value: object) -> bool:
    return _is_list(value, _is_size)


def _is_mapping(value: object, fits: Callable[[object], bool]) -> bool:
    if not isinstance(value, Mapping) or len(value) > MAX_ITEMS:
        return False
    return all(map(_is_string, value)) and all(map(fits, value.values()))


_NAMES = FieldType(
    "a string, a list of strings or None", lambda v: v is None or _is_string(v) or is_strings(v)
)
_TEXT = FieldType("a string", _is_string)
_TEXT_OR_NONE = FieldType("a string or None", lambda v: v is None or _is_string(v))
_FLAG = FieldType("True or False", _is_bool)
_SIZES = FieldType(
    "numbers or expressions by name, such as {'h': 64}", lambda v: _is_mapping(v, _is_size)
)
_FACTOR = FieldType(
    "a number, an expression or None",
    lambda v: v is None or (_is_size(v) and not _is_bool(v)),
)

FIELD_TYPES: Mapping[str, FieldType] = {
    **dict.fromkeys(["names", "paths"], _NAMES),
    **dict.fromkeys(["axes", "path_axes", "name"], _TEXT),
    **dict.fromkeys(["when", "store_dtype"], _TEXT_OR_NONE),
    **dict.fromkeys(["optional", "lossy", "reverse"], _FLAG),
    **dict.fromkeys(["sizes", "pad"], _SIZES),
    **dict.fromkeys(["scale", "add"], _FACTOR),
    "cat": FieldType(
        "lists of numbers or expressions by name, such as {'c': [64, 'n']}",
        lambda v: _is_mapping(v, _is_sizes),
    ),
    "prefixes": FieldType(
        "lists of strings by name, such as {'model.': ['']}", lambda v: _is_mapping(v, is_strings)
    ),
    "roots": FieldType("a list of strings", is_strings),
    "rules": FieldType("a list of Rules", _is_list),
}


def require_field_types(value: Any, where: str) -> None:
    """Raise TypeError for the first field of a `Recipe` or a `Rule` that has another type.

    Args:
        value: the recipe or rule.
        where: its words for the message.
    """
    for each in fields(value):
        content, expected = getattr(value, each.name), FIELD_TYPES[each.name]
        if not expected.fits(content):
            raise TypeError(
                f"{where}: {each.name}: expected {expected.text}, found {_shown(content)} of type "
                f"{type(content).__name__}"
            )
        longest = max(map(len, _texts(content)), default=0)
        if longest > MAX_TEXT:
            raise ValueError(
                f"{where}: {each.name}: a text of {longest} characters: expected at most {MAX_TEXT}"
            )


def _texts(value: object) -> Iterator[str]:
    """Yield the strings in a string, list or mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        yield from [text for each in value.values() for text in _texts(each)]
    elif isinstance(value, Sequence):
        yield from [text for each in value for text in _texts(each)]


def _shown(value: object) -> str:
    """Return a value for a message; a long one is not written out to be cut."""
    if isinstance(value, Sequence | Mapping) and len(value) > SHOWN:
        return f"one of {len(value)} elements"
    return f"{value!r:.{SHOWN}}"
