"""Strict parsing of JSON: no duplicate keys, no NaN, limits, and errors with the byte offset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from cordwood.errors import FormatError


class _DuplicateKeyError(ValueError):
    def __init__(self, key: str) -> None:
        self.key = key


def parse_json(
    text: str | bytes, where: str, *, start: int | None = None, allow_nan: bool = False
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON; bytes are UTF-8.
        where: the name of the text for the error.
        start: the byte offset of `text` in its file; with it errors name byte offsets.
        allow_nan: accept NaN and infinities in Python's notation.

    Raises:
        FormatError: the text is not strict JSON, or not UTF-8.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as e:
            raise FormatError(f"{where} is not UTF-8 at byte {e.start}") from e
    try:
        return (_WITH_NAN if allow_nan else _DECODER).decode(text)
    except json.JSONDecodeError as e:
        raise FormatError(f"{where} is not JSON: {e.msg}{_at(text, e.pos, start)}") from e
    except _DuplicateKeyError as e:
        raise FormatError(
            f"{where}: the key {e.key!r:.200} occurs twice{_second(text, e.key, start)}"
        ) from e
    except RecursionError as e:
        raise FormatError(f"{where} nests too deeply") from e
    except ValueError as e:  # NaN, or an integer of thousands of digits
        raise FormatError(f"{where}: {e}") from e


def parse_value(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `position`, and the position of its end.

    Raises:
        FormatError: there is no JSON value at `position`.
    """
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"no JSON at character {position}") from e


def _at(text: str, position: int, start: int | None) -> str:
    if start is None:
        return f" (at character {position})"
    offset = start + len(text[:position].encode("utf-8", "surrogatepass"))
    return f" (at byte {offset})"


def _second(text: str, key: str, start: int | None) -> str:
    for quoted in (json.dumps(key, ensure_ascii=False), json.dumps(key)):
        first = text.find(f"{quoted}:")
        second = text.find(f"{quoted}:", first + 1)
        if second > first >= 0:
            return _at(text, second, start)
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateKeyError(first_repeated([key for key, _ in pairs]))
    return members


def first_repeated(keys: Sequence[Any]) -> Any:
    """Return the first key that occurs twice; there must be one."""
    seen = set()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return key


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a finite number, found {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique)
