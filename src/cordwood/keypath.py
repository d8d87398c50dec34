"""Key paths: the place of a leaf in its tree.

A path is a tuple of keys. A `str` is a string key of a dict or a field of a named tuple,
dataclass or other node; an `int` is a position in a list or tuple; a dict key that is
neither is wrapped: `DictKey(1)`.

The string form of a path joins its keys with '/':

    params/dense/kernel     string keys and fields
    layers/0/bias           a position in a list or tuple
    layers/'0'/bias         a string key that looks like a position (or is empty, or begins
                            with a quote or a parenthesis)
    table/(3)/(None)        other dict keys, as Python literals
    a%2Fb                   '/', '%', control characters and lone surrogates, percent-encoded

It is injective: `parse_path(format_path(path)) == path` for every path.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from cordwood.public_names import document_fields

__all__ = ["DictKey", "format_path", "parse_path"]


@document_fields
class DictKey(NamedTuple):
    """A dict key that is not a string: int, bool, float, None, bytes, or a tuple of those.

    Attributes:
        value: the key itself.
    """

    value: Any


Key: TypeAlias = str | int | DictKey
KeyPath: TypeAlias = tuple[Key, ...]

_POSITION = re.compile(r"[0-9]+")
_QUOTED = re.compile(r"['(]|[0-9]+\Z|\Z")  # a string key of this form is quoted
_ESCAPED = re.compile("[/%\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")


def is_dict_key(value: object) -> bool:
    """Return True if a dict key other than a string can be stored exactly."""
    if type(value) is tuple:
        return all(type(item) is str or is_dict_key(item) for item in value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, bytes)


def format_path(path: KeyPath) -> str:
    """Return the string form of a key path; '' for the root.

    >>> format_path(("layers", 0, "w/b", "0", DictKey(3)))
    "layers/0/w%2Fb/'0'/(3)"
    """
    return "/".join([_format_key(key) for key in path])


def path_label(path: KeyPath) -> str:
    """Return a key path as errors show it."""
    return format_path(path) or "the root"


def format_paths(paths: Iterable[KeyPath]) -> list[str]:
    """Return the string form of each path; each distinct key is formatted once."""
    text_of = _KeyTexts().__getitem__
    return ["/".join(map(text_of, path)) for path in paths]


class _KeyTexts(dict[Key, str]):
    """A cache of the string forms of keys."""

    def __missing__(self, key: Key) -> str:
        text = _format_key(key)
        if not isinstance(key, DictKey):  # equal keys such as 1, 1.0 and True differ in text
            self[key] = text
        return text


def _format_key(key: Key) -> str:
    if isinstance(key, str):
        if key.isidentifier():  # nearly all are; they need no escape and no quotes
            return key
        text = _ESCAPED.sub(_escape, key)
        return f"'{text}'" if _QUOTED.match(text) else text
    if isinstance(key, DictKey):
        return _ESCAPED.sub(_escape, f"({key_literal(key.value)})")
    return str(key)


def key_literal(value: Any) -> str:
    """Return a dict key as a Python literal; ints too long for decimal are hexadecimal.

    >>> key_literal((3, "a"))
    "(3, 'a')"
    """
    try:
        return repr(value)
    except ValueError:
        if isinstance(value, tuple):
            items = ", ".join(map(key_literal, value))
            return f"({items},)" if len(value) == 1 else f"({items})"
        return f"{value:#x}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")


def parse_path(text: str) -> KeyPath:
    """Return the key path whose string form is `text`; the inverse of `format_path`.

    Raises:
        ValueError: `text` is no such string; the message names the wrong key.
    """
    return tuple(_parse_key(part, text) for part in text.split("/")) if text else ()


def _parse_key(part: str, text: str) -> Key:
    if _POSITION.fullmatch(part):
        return int(part)
    try:
        key = _ESCAPES.sub(_unescape, part)
    except UnicodeDecodeError as e:
        raise ValueError(f"key path {text!r}: {part!r} is not percent-encoded UTF-8") from e
    if part.startswith("'"):
        if len(part) < 2 or not part.endswith("'"):
            raise ValueError(f"key path {text!r}: {part!r} lacks its closing quote")
        return key[1:-1]
    if part.startswith("("):
        try:
            value = ast.literal_eval(key)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as e:
            raise ValueError(f"key path {text!r}: {part!r} is not a Python literal") from e
        if isinstance(value, str) or not is_dict_key(value):
            raise ValueError(f"key path {text!r}: {part!r} cannot be a dict key here")
        return DictKey(value)
    if not part:
        raise ValueError(f"key path {text!r} has an empty key; an empty string key is written ''")
    return key
