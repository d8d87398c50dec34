"""msgpack tokens: the token at an offset is read without copying its contents."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.errors import FormatError, TruncatedError
from cordwood.message_text import counted

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
    number: Callable[[Any, int], tuple[Any, ...]] | None = None  # unpacks the bytes that follow
    width: int = 0  # the number of bytes that follow
    value: Any = None  # if there is no `number`: the value, count or length


def _unpacker(layout: str) -> tuple[Callable[[Any, int], tuple[Any, ...]], int]:
    compiled = struct.Struct(layout)
    return compiled.unpack_from, compiled.size


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
            forms[first + i] = _Form(kind, *_unpacker(layout), fixed)
    return forms


_FORMS = _forms()
_SIZED = frozenset({"str", "bin", "ext", "array", "map"})  # kinds with a length or count


def read_token(data: memoryview, pos: int, name: str) -> Token:
    """Read the token at byte `pos` of the file called `name`.

    Raises:
        TruncatedError: the token is not complete.
        FormatError: no token begins with that byte.
    """
    end = len(data)
    if pos >= end:
        raise truncated_error(name, pos, "a value", 1, 0)
    form = _FORMS[data[pos]]
    if form is None:
        raise FormatError(
            f"{name}: byte {pos}: expected a value, found 0xc1, which begins no value"
        )
    kind, number, width, value = form
    start = pos + 1 + width
    if number is None:
        if kind == "str":
            stop = start + value
            if stop > end:
                raise truncated_error(name, start, "a str", value, end - start)
            return Token(kind, None, start, stop)
        return Token(kind, value, start, start)
    if start > end:
        raise truncated_error(
            name, pos + 1, f"the length or value of {_a(kind)}", width, end - pos - 1
        )
    numbers = number(data, pos + 1)
    if kind == "ext":
        length = numbers[0] if value is None else value
        stop = start + length
        if stop > end:
            raise truncated_error(name, start, "an ext", length, end - start)
        return Token(kind, numbers[-1], start, stop)
    if kind == "str" or kind == "bin":
        stop = start + numbers[0]
        if stop > end:
            raise truncated_error(name, start, _a(kind), numbers[0], end - start)
        return Token(kind, None, start, stop)
    return Token(kind, numbers[0], start, start)


def read_header(data: bytes, pos: int) -> tuple[int, int] | None:
    """Return the number of values inside a value, and the offset after its header and bytes.

    The offset may be after the end of `data`. The number is -1 if no value begins with that byte.
    Returns None if the header is not complete.
    """
    form = _FORMS[data[pos]]
    if form is None:
        return -1, pos
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


def trailing_bytes_error(data: memoryview, pos: int, name: str) -> FormatError:
    """Return the error for bytes after the value; the advice covers compressed streams."""
    magic = bytes(data[:4])
    advice = ""
    if magic[:2] == b"\x1f\x8b":
        advice = (
            ': this is a gzip stream; cordwood.load(path, format="msgpack.gz") reads a file of '
            "it, and from_compressed_bytes its bytes"
        )
    elif magic == b"\x28\xb5\x2f\xfd":
        advice = ': this is a zstd stream; cordwood.load(path, format="msgpack.zst") reads it'
    return FormatError(
        f"{name}: byte {pos}: expected the end of the data, found "
        f"{counted(len(data) - pos, 'more byte')}{advice}"
    )


def decode_text(data: memoryview, start: int, stop: int, name: str) -> str:
    """Decode bytes [start, stop). Raises FormatError if they are not UTF-8."""
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError as e:
        pos = start + e.start
        raise FormatError(
            f"{name}: byte {pos}: expected UTF-8 in a str, found {data[pos]:#04x}"
        ) from e
