"""The header of an array in its msgpack extension: shape, dtype, and where the elements begin."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.formats.flax_msgpack.byte_window import ByteWindow
from cordwood.formats.flax_msgpack.wire import Token, decode_text, read_token
from cordwood.index import MAX_ARRAY_BYTES, MAX_DIMS, Encoding
from cordwood.message_text import counted

_MAX_NAME_BYTES = 64
# Codes that other writers use instead of names: '>f4', '<i2', '|b1', '<M8[ns]'.
_CODE = re.compile(r"([<>=|]?)(b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[mM]8(?:\[\w+\])?)")


class ArrayHeader(NamedTuple):
    """The shape, the dtype and the offset of the elements of an array."""

    shape: tuple[int, ...]
    dtype: str
    encoding: Encoding
    start: int  # of the elements, in bytes from the start of the file


def read_array_header(window: ByteWindow, start: int, stop: int) -> ArrayHeader:
    """Read the payload of an array or scalar extension, bytes [start, stop).

    Raises FormatError unless it is [shape, dtype, elements] with sizes that agree.
    """
    name = window.name
    token = _token(window, start, stop)
    if token.kind != "array" or token.value != 3:
        raise _unexpected(token, "[shape, dtype, elements] of an array", start, name)
    shape, pos = _read_shape(window, token.start, stop)
    at = pos
    token = _token(window, pos, stop)
    if token.kind not in ("str", "bin") or token.stop - token.start > _MAX_NAME_BYTES:
        raise _unexpected(token, "the name of a dtype", pos, name)
    dtype, encoding = _read_dtype(decode_text(window, token.start, token.stop), pos, name)
    pos = token.stop
    token = _token(window, pos, stop)
    if token.kind not in ("bin", "str"):
        raise _unexpected(token, "the elements of an array as binary", pos, name)
    if token.stop != stop:
        raise FormatError(
            f"{name}: byte {token.stop}: expected the end of the array's extension, "
            f"found {counted(stop - token.stop, 'more byte')}"
        )
    nbytes = token.stop - token.start
    shape = _check_size(shape, dtype, nbytes, at, name)
    return ArrayHeader(shape, dtype, encoding, token.start)


def _token(window: ByteWindow, pos: int, stop: int) -> Token:
    if pos < stop:
        token = read_token(window, pos)
        if token.stop <= stop:
            return token
    raise FormatError(
        f"{window.name}: byte {pos}: an array's extension ends at byte {stop}, before its contents "
        "do"
    )


def _read_shape(window: ByteWindow, pos: int, stop: int) -> tuple[tuple[int, ...], int]:
    name = window.name
    token = _token(window, pos, stop)
    if token.kind != "array":
        raise _unexpected(token, "the shape of an array", pos, name)
    if token.value > MAX_DIMS:
        raise LimitError(
            f"{name}: byte {pos}: an array has {token.value} dimensions; "
            f"at most {MAX_DIMS} are read"
        )
    shape = []
    pos = token.start
    for _ in range(token.value):
        token = _token(window, pos, stop)
        if token.kind != "int":
            raise _unexpected(token, "a dimension of an array", pos, name)
        if token.value < -1 or (token.value == -1 and -1 in shape):
            raise FormatError(
                f"{name}: byte {pos}: expected a dimension of an array, found {token.value}"
            )
        shape.append(token.value)
        pos = token.stop
    return tuple(shape), pos


def _read_dtype(text: str, pos: int, name: str) -> tuple[str, Encoding]:
    if dtypes.is_storable(text):
        return text, "raw"
    if _CODE.fullmatch(text):
        import numpy as np

        try:
            dtype = np.dtype(text)
            return dtypes.name_of(dtype), "swapped" if dtype.str[0] == ">" else "raw"
        except TypeError:
            pass
    is_of_flax = text.startswith(("str", "bytes", "void", "record"))
    advice = ", which Flax writes but cannot read" if is_of_flax else ""
    raise FormatError(f"{name}: byte {pos}: expected a numeric dtype, found {text!r}{advice}")


def _check_size(
    shape: tuple[int, ...], dtype: str, nbytes: int, pos: int, name: str
) -> tuple[int, ...]:
    """Check the size; return the shape, with a dimension of -1 replaced by its value."""
    itemsize = dtypes.itemsize(dtype)
    if math.prod([size for size in shape if size > 0]) * itemsize > MAX_ARRAY_BYTES:
        raise LimitError(f"{name}: byte {pos}: {dtype}{list(shape)} has more than 2**63 bytes")
    if -1 in shape:
        row_bytes = -math.prod(shape) * itemsize
        if row_bytes == 0 or nbytes % row_bytes:
            raise FormatError(
                f"{name}: byte {pos}: {counted(nbytes, 'byte')} of {dtype} cannot make "
                f"shape {list(shape)}"
            )
        return tuple([nbytes // row_bytes if size == -1 else size for size in shape])
    expected = math.prod(shape) * itemsize
    if expected != nbytes:
        raise FormatError(
            f"{name}: byte {pos}: expected {counted(expected, 'byte')} for {dtype}{list(shape)}, "
            f"found {nbytes}"
        )
    return shape


def _unexpected(token: Token, expected: str, pos: int, name: str) -> FormatError:
    if token.kind in ("str", "bin"):
        found = f"a {token.kind} of {counted(token.stop - token.start, 'byte')}"
    elif token.kind in ("array", "map"):
        found = f"{'an array' if token.kind == 'array' else 'a map'} of {token.value}"
    elif token.kind == "ext":
        found = f"extension {token.value}"
    else:
        found = "nil" if token.kind == "nil" else f"the {token.kind} {token.value}"
    return FormatError(f"{name}: byte {pos}: expected {expected}, found {found}")
