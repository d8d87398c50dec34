"""JSON: strict parsing, and exact forms of Python values."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from cordwood.errors import FormatError
from cordwood.index import LeafKind


class _DuplicateKeyError(ValueError):
    def __init__(self, key: str) -> None:
        self.key = key


def parse_json(text: str, where: str, *, start: int | None = None, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON.
        where: the name of the text for the error.
        start: the byte offset of `text` in its file; with it errors name byte offsets.
        allow_nan: accept NaN and infinities in Python's notation.

    Raises:
        FormatError: the text is not strict JSON.
    """
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
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a finite number, found {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique)


# Exact forms of Python values: every bit of a float, ints of any size, any str.

_SAFE_INTEGER = 1 << 53  # every JSON reader keeps integers up to this exactly
_HEX = re.compile(r"-?[0-9a-f]+")
_BITS = re.compile(r"[0-9a-f]{16}")


def encode_value(kind: LeafKind, value: Any) -> Any:
    """Return the JSON form of a Python value of one of VALUE_KINDS."""
    return _CODERS[kind][0](value)


def decode_value(kind: LeafKind, stored: Any) -> Any:
    """Return the value whose JSON form is `stored`.

    Raises:
        FormatError: `stored` is no such form; the message does not name its place in the file.
    """
    try:
        return _CODERS[kind][1](stored)
    except (ValueError, TypeError, binascii.Error) as e:
        raise FormatError(f"expected a value of kind {kind}, found {stored!r:.80}") from e


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _encode_bool(value: Any) -> Any:
    return value


def _decode_bool(stored: Any) -> bool:
    _require(type(stored) is bool)
    return bool(stored)


def _encode_int(value: int) -> int | str:
    return value if abs(value) < _SAFE_INTEGER else f"{value:x}"


def _decode_int(stored: Any) -> int:
    if type(stored) is int:
        return stored
    _require(type(stored) is str and _HEX.fullmatch(stored) is not None)
    return int(stored, 16)


def _encode_float(value: float) -> float | str:
    return value if math.isfinite(value) else struct.pack(">d", value).hex()


def _decode_float(stored: Any) -> float:
    if type(stored) is float:
        _require(math.isfinite(stored))
        return stored
    _require(type(stored) is str and _BITS.fullmatch(stored) is not None)
    return float(struct.unpack(">d", bytes.fromhex(stored))[0])


def _encode_complex(value: complex) -> list[float | str]:
    return [_encode_float(value.real), _encode_float(value.imag)]


def _decode_complex(stored: Any) -> complex:
    _require(type(stored) is list and len(stored) == 2)
    return complex(_decode_float(stored[0]), _decode_float(stored[1]))


def _encode_str(value: str) -> str | dict[str, str]:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON cannot tell two lone surrogates from a pair
        return {"utf8": _encode_bytes(value.encode("utf-8", "surrogatepass"))}
    return value


def _decode_str(stored: Any) -> str:
    if type(stored) is dict:
        _require(list(stored) == ["utf8"])
        return _decode_bytes(stored["utf8"]).decode("utf-8", "surrogatepass")
    _require(type(stored) is str)
    return str(stored)


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_bytes(stored: Any) -> bytes:
    _require(type(stored) is str)
    return base64.b64decode(stored, validate=True)


_CODERS: dict[LeafKind, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bool": (_encode_bool, _decode_bool),
    "int": (_encode_int, _decode_int),
    "float": (_encode_float, _decode_float),
    "complex": (_encode_complex, _decode_complex),
    "str": (_encode_str, _decode_str),
    "bytes": (_encode_bytes, _decode_bytes),
}
VALUE_KINDS = frozenset(_CODERS)
