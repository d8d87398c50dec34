"""msgpack on the wire: the header of a value, encoded, and the token at an offset.

Headers are encoded in their shortest form: those of bytes and extensions, which the msgpack library
writes only together with the contents. The token at an offset is read without copying its contents.

https://github.com/msgpack/msgpack/blob/master/spec.md, sections "int format family" and on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.errors import FormatError, TruncatedError
from cordwood.formats.flax_msgpack.byte_window import ByteWindow
from cordwood.message_text import counted

EXT_ARRAY = 1  # Flax: an array
EXT_COMPLEX = 2  # Flax: a Python complex
EXT_SCALAR = 3  # Flax: a numpy scalar
EXT_TUPLE = 4  # Orbax: a tuple
EXT_TIMESTAMP = -1  # msgpack: a time

CHUNKED_MARKER = "__msgpack_chunked_array__"  # Flax: a key of the dict that encodes a large array

MAX_DEPTH = 1024  # of nested containers; the limit of the msgpack library, and so of Flax
MAX_LENGTH = 2**32 - 1  # of a string, binary, extension, array or map


def _header(first: int, length: int) -> bytes:
    """Return a length in 1, 2 or 4 bytes; each width has a first byte, in a row."""
    width = (length >= 1 << 8) + (length >= 1 << 16)
    return struct.pack(f">B{'BHI'[width]}", first + width, length)


def bin_header(length: int) -> bytes:
    """Return the header of `length` bytes."""
    return _header(0xC4, length)


_FIXED_EXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def ext_header(code: int, length: int) -> bytes:
    """Return the header of an extension of `length` bytes."""
    first = _FIXED_EXT.get(length)
    head = _header(0xC7, length) if first is None else bytes((first,))
    return head + struct.pack("b", code)


TokenKind: TypeAlias = Literal["nil", "bool", "int", "float", "str", "bin", "ext", "array", "map"]


class Token(NamedTuple):
    """A value, or the header of a value that has contents."""

    kind: TokenKind
    value: Any  # of a nil, bool, int or float; the count of an array or map; the code of an ext
    start: int  # of the contents of a str, bin, ext, array or map
    stop: int  # of a str, bin or ext with its contents; otherwise of the token


class _Form(NamedTuple):
    """The meaning of a first byte."""

    kind: TokenKind
    number: Callable[[bytes, int], tuple[Any, ...]] | None = None  # unpacks the bytes that follow
    width: int = 0  # the number of bytes that follow
    value: Any = None  # if there is no `number`: the value, count or length


def _forms() -> list[_Form | None]:
    forms: list[_Form | None] = [None] * 256
    forms[0x00:0x80] = [_Form("int", value=value) for value in range(0x80)]
    forms[0x80:0x90] = [_Form("map", value=count) for count in range(16)]
    forms[0x90:0xA0] = [_Form("array", value=count) for count in range(16)]
    forms[0xA0:0xC0] = [_Form("str", value=length) for length in range(32)]
    forms[0xC0] = _Form("nil")
    forms[0xC2] = _Form("bool", value=False)
    forms[0xC3] = _Form("bool", value=True)
    forms[0xE0:0x100] = [_Form("int", value=value) for value in range(-32, 0)]
    rows: list[tuple[int, TokenKind, str]] = [
        (0xC4, "bin", ">B >H >I"),
        (0xC7, "ext", ">Bb >Hb >Ib"),
        (0xCA, "float", ">f >d"),
        (0xCC, "int", ">B >H >I >Q >b >h >i >q"),
        (0xD4, "ext", ">b >b >b >b >b"),
        (0xD9, "str", ">B >H >I"),
        (0xDC, "array", ">H >I"),
        (0xDE, "map", ">H >I"),
    ]
    for first, kind, layouts in rows:
        for i, layout in enumerate(layouts.split()):
            fixed = 1 << i if first == 0xD4 else None
            packed = struct.Struct(layout)
            forms[first + i] = _Form(kind, packed.unpack_from, packed.size, fixed)
    return forms


_FORMS = _forms()
_MAX_TOKEN_BYTES = 9  # without contents
_WITH_BYTES = frozenset({"str", "bin", "ext"})  # kinds with a length
_SIZED = _WITH_BYTES | {"array", "map"}  # kinds with a length or count


def read_token(window: ByteWindow, pos: int) -> Token:
    """Read the token at byte `pos` of a file.

    Raises:
        TruncatedError: the token is not complete.
        FormatError: no token begins with that byte.
    """
    end, name = window.stop, window.name
    if pos >= end:
        raise truncated_error(name, pos, "a value", 1, 0)
    at = window.locate(pos, _MAX_TOKEN_BYTES)
    form = _FORMS[window.data[at]]
    if form is None:
        raise FormatError(
            f"{name}: byte {pos}: expected a value, found 0xc1, which begins no value"
        )
    kind, number, width, value = form
    start = pos + 1 + width
    numbers = (value,)
    if number is not None:
        if start > end:
            what = f"the length or value of {_a(kind)}"
            raise truncated_error(name, pos + 1, what, width, end - pos - 1)
        numbers = number(window.data, at + 1)
    if kind not in _WITH_BYTES:
        return Token(kind, numbers[0], start, start)
    length = numbers[0] if value is None else value
    stop = start + length
    if stop > end:
        raise truncated_error(name, start, _a(kind), length, end - start)
    return Token(kind, numbers[-1] if kind == "ext" else None, start, stop)


def read_header(data: bytes, pos: int) -> tuple[int, int] | None:
    """Return the number of values inside a value, and the offset after its header and bytes.

    The offset may be after the end of `data`. Returns None if the header is not complete.

    Raises FormatError if no value begins with that byte.
    """
    form = _FORMS[data[pos]]
    if form is None:
        raise FormatError(f"byte {pos}: 0xc1 begins no value")
    kind, number, width, value = form
    start = pos + 1 + width
    if start > len(data):
        return None
    if number is not None and kind in _SIZED and value is None:
        value = number(data, pos + 1)[0]
    if kind == "map":
        return 2 * value, start
    if kind == "array":
        return value, start
    return 0, start + (value if kind in _SIZED else 0)


def _a(kind: TokenKind) -> str:
    return f"an {kind}" if kind[0] in "aei" else f"a {kind}"


def truncated_error(name: str, pos: int, what: str, expected: int, actual: int) -> TruncatedError:
    """Return the error for a value of which `expected` more bytes should follow."""
    return TruncatedError(
        f"{name}: byte {pos}: truncated: {what} needs "
        f"{counted(expected, 'more byte')}, found {actual}"
    )


def trailing_bytes_error(window: ByteWindow, pos: int) -> FormatError:
    """Return the error for bytes after the value; the advice covers compressed streams."""
    magic = window.bytes(window.start, min(window.start + 4, window.stop))
    advice = ""
    if magic[:2] == b"\x1f\x8b":
        advice = (
            ': this is a gzip stream; cordwood.load(path, format="msgpack.gz") reads a file of '
            "it, and from_compressed_bytes its bytes"
        )
    elif magic == b"\x28\xb5\x2f\xfd":
        advice = ': this is a zstd stream; cordwood.load(path, format="msgpack.zst") reads it'
    return FormatError(
        f"{window.name}: byte {pos}: expected the end of the data, found "
        f"{counted(window.stop - pos, 'more byte')}{advice}"
    )


def decode_text(window: ByteWindow, start: int, stop: int) -> str:
    """Decode bytes [start, stop). Raises FormatError if they are not UTF-8."""
    data = window.bytes(start, stop)
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise FormatError(
            f"{window.name}: byte {start + e.start}: expected UTF-8 in a str, found "
            f"{data[e.start]:#04x}"
        ) from e
