"""Encoders of msgpack headers and scalars, in the shortest form of each value.

https://github.com/msgpack/msgpack/blob/master/spec.md, sections "int format family" and on.
"""

from __future__ import annotations

import struct

EXT_ARRAY = 1  # Flax: an array
EXT_COMPLEX = 2  # Flax: a Python complex
EXT_SCALAR = 3  # Flax: a numpy scalar
EXT_TUPLE = 4  # Orbax: a tuple

CHUNKED_MARKER = "__msgpack_chunked_array__"  # Flax: a key of the dict that encodes a large array

MAX_DEPTH = 1024  # of nested containers; the limit of the msgpack library, and so of Flax
MAX_LENGTH = 2**32 - 1  # of a string, binary, extension, array or map


def map_header(count: int) -> bytes:
    """Return the header of a map of `count` entries."""
    if count < 16:
        return bytes((0x80 | count,))
    return struct.pack(">BH", 0xDE, count) if count < 1 << 16 else struct.pack(">BI", 0xDF, count)


def array_header(count: int) -> bytes:
    """Return the header of an array of `count` values."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def bin_header(length: int) -> bytes:
    """Return the header of `length` bytes."""
    if length < 1 << 8:
        return struct.pack(">BB", 0xC4, length)
    if length < 1 << 16:
        return struct.pack(">BH", 0xC5, length)
    return struct.pack(">BI", 0xC6, length)


_FIXED_EXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def ext_header(code: int, length: int) -> bytes:
    """Return the header of an extension of `length` bytes."""
    if length in _FIXED_EXT:
        return struct.pack(">Bb", _FIXED_EXT[length], code)
    if length < 1 << 8:
        return struct.pack(">BBb", 0xC7, length, code)
    if length < 1 << 16:
        return struct.pack(">BHb", 0xC8, length, code)
    return struct.pack(">BIb", 0xC9, length, code)


def encode_str(text: str) -> bytes:
    """Encode a str. Raises UnicodeEncodeError for lone surrogates, which UTF-8 cannot encode."""
    data = text.encode()
    length = len(data)
    if length < 32:
        return bytes((0xA0 | length,)) + data
    if length < 1 << 8:
        return struct.pack(">BB", 0xD9, length) + data
    if length < 1 << 16:
        return struct.pack(">BH", 0xDA, length) + data
    return struct.pack(">BI", 0xDB, length) + data


def encode_int(value: int) -> bytes:
    """Encode an int. Raises OverflowError outside of [-2**63, 2**64)."""
    if value >= 0:
        if value < 1 << 7:
            return bytes((value,))
        if value < 1 << 8:
            return struct.pack(">BB", 0xCC, value)
        if value < 1 << 16:
            return struct.pack(">BH", 0xCD, value)
        if value < 1 << 32:
            return struct.pack(">BI", 0xCE, value)
        if value < 1 << 64:
            return struct.pack(">BQ", 0xCF, value)
    elif value >= -(1 << 5):
        return struct.pack(">b", value)
    elif value >= -(1 << 7):
        return struct.pack(">Bb", 0xD0, value)
    elif value >= -(1 << 15):
        return struct.pack(">Bh", 0xD1, value)
    elif value >= -(1 << 31):
        return struct.pack(">Bi", 0xD2, value)
    elif value >= -(1 << 63):
        return struct.pack(">Bq", 0xD3, value)
    raise OverflowError("integers of msgpack have at most 64 bits")


def encode_float(value: float) -> bytes:
    """Encode a float in 64 bits."""
    return struct.pack(">Bd", 0xCB, value)


def encode_complex(value: complex) -> bytes:
    """Encode a complex number as Flax's extension of two floats."""
    payload = array_header(2) + encode_float(value.real) + encode_float(value.imag)
    return ext_header(EXT_COMPLEX, len(payload)) + payload


def ndarray_header(code: int, shape: tuple[int, ...], dtype: str, size_bytes: int) -> bytes | None:
    """Return all bytes of an array before its elements; None if an extension cannot hold it."""
    payload = b"".join(
        [
            array_header(3),
            array_header(len(shape)),
            *[encode_int(size) for size in shape],
            encode_str(dtype),
            bin_header(size_bytes) if size_bytes <= MAX_LENGTH else b"",
        ]
    )
    if len(payload) + size_bytes > MAX_LENGTH:
        return None
    return ext_header(code, len(payload) + size_bytes) + payload
