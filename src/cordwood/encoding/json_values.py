"""Exact forms of Python values in JSON: every bit of a float, ints of any size, any str."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable
from typing import Any

from cordwood.errors import FormatError
from cordwood.index import LeafKind

SAFE_INTEGER = 1 << 53  # every JSON reader keeps integers up to this exactly
HEX = re.compile(r"-?[0-9a-f]+")
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
    except (ValueError, TypeError) as e:
        raise FormatError(f"expected a value of kind {kind}, found {stored!r:.80}") from e


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _decode_bool(stored: Any) -> bool:
    _require(type(stored) is bool)
    return bool(stored)


def _encode_int(value: int) -> int | str:
    return value if abs(value) < SAFE_INTEGER else f"{value:x}"


def _decode_int(stored: Any) -> int:
    if type(stored) is int:
        return stored
    _require(type(stored) is str and HEX.fullmatch(stored) is not None)
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


def encode_str(value: str) -> str | dict[str, str]:
    """Return the form of a str, which may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON cannot tell two lone surrogates from a pair
        return {"utf8": encode_bytes(value.encode("utf-8", "surrogatepass"))}
    return value


def _decode_str(stored: Any) -> str:
    if type(stored) is dict:
        _require(list(stored) == ["utf8"])
        return _decode_bytes(stored["utf8"]).decode("utf-8", "surrogatepass")
    _require(type(stored) is str)
    return str(stored)


def encode_bytes(value: bytes) -> str:
    """Return the form of bytes."""
    return base64.b64encode(value).decode()


def _decode_bytes(stored: Any) -> bytes:
    _require(type(stored) is str)
    return base64.b64decode(stored, validate=True)


_CODERS: dict[LeafKind, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bool": (bool, _decode_bool),
    "int": (_encode_int, _decode_int),
    "float": (_encode_float, _decode_float),
    "complex": (_encode_complex, _decode_complex),
    "str": (encode_str, _decode_str),
    "bytes": (encode_bytes, _decode_bytes),
}
VALUE_KINDS = frozenset(_CODERS)
