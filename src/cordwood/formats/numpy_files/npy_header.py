"""The header of a .npy array.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: the magic, two bytes of
version, a little-endian length (of two bytes in version 1.0, of four later), and the text of a
Python dict. The text is parsed token by token and never evaluated. numpy's own reader compiles it
(`ast.literal_eval`), accepts keys that occur twice and negative lengths, and raises MemoryError for
text that nests deeply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError, TruncatedError, UnsupportedFormatError
from cordwood.formats.numpy_files.npy_dtypes import parse_dtype, unread_item_bytes
from cordwood.index import MAX_ARRAY_BYTES, MAX_DIMS
from cordwood.io.open_files import ReadableFile

MAGIC = b"\x93NUMPY"
FIRST_BYTES = 12  # the bytes that `header_bytes` needs
MAX_HEADER_BYTES = 10_000  # of the dict's text: numpy's own limit
_TOKEN = re.compile(r"""[ \n]*(?:'([^'\\\n]*)'|"([^"\\\n]*)"|(True|False)|([0-9]+)L?|(.))""", re.S)
_KEYS = {"descr", "fortran_order", "shape"}


def read_array_header(file: ReadableFile, offset: int) -> NpyHeader:
    """Read the header of the array that begins at `offset`; check that the file holds all of it.

    Raises as `read_index`; the message names the file and the byte.
    """
    room = file.size_bytes - offset
    try:
        size = header_bytes(file.read(offset, min(FIRST_BYTES, room)))
        if size > room:
            raise TruncatedError(
                f"its header takes {size} bytes, and the file has {room}; copy or save it again"
            )
        header = parse_header(file.read(offset, size))
        if header.stop > room:
            raise TruncatedError(
                f"an array {header.dtype}{list(header.shape)} ends at byte "
                f"{offset + header.stop}, after the end of the file at byte {file.size_bytes}; "
                "copy or save it again"
            )
    except UnreadableArrayError as e:
        if e.stop is not None and e.stop > room:
            raise TruncatedError(
                f"{file.name}: byte {offset}: an array that cannot be read ({e.reason}) ends after "
                f"the end of the file at byte {file.size_bytes}; copy or save it again"
            ) from e
        raise UnreadableArrayError(e.reason, e.stop, f"{file.name}: byte {offset}: ") from e
    except (FormatError, UnsupportedFormatError) as e:
        raise type(e)(f"{file.name}: byte {offset}: {e}") from e
    return header


class UnreadableArrayError(UnsupportedFormatError):
    """An array whose elements are of a kind that is not read.

    Attributes:
        reason: the message, without the name of the file.
        stop: the end of the array, in bytes from the start of its header; None if it is unknown.
    """

    def __init__(self, reason: str, stop: int | None = None, where: str = "") -> None:
        super().__init__(where + reason)
        self.reason = reason
        self.stop = stop


class NpyHeader(NamedTuple):
    """The parsed header of an array."""

    shape: tuple[int, ...]
    dtype: str  # a name of cordwood.dtypes
    swapped: bool  # elements are big-endian
    fortran: bool  # elements are in Fortran order: the first axis varies fastest
    start: int  # of the elements, in bytes from the start of the header
    stop: int  # of the elements


def header_of_bytes(size_bytes: int) -> NpyHeader:
    """Return what the header would be of bytes that are no array and have none."""
    return NpyHeader((size_bytes,), "uint8", False, False, 0, size_bytes)


def header_bytes(first: bytes) -> int:
    """Return the size of a header from its first FIRST_BYTES (fewer at the end of a file).

    Raises FormatError, TruncatedError or LimitError, whose messages do not name the file.
    """
    if not first.startswith(MAGIC):
        raise FormatError(
            f"expected {MAGIC!r}, found {first[: len(MAGIC)]!r}: this is not a .npy array"
        )
    width = 2 if first[6:7] == b"\1" else 4
    if len(first) < 8 + width:
        raise TruncatedError("it ends inside the header of a .npy array; copy or save it again")
    if first[6] not in (1, 2, 3):
        raise UnsupportedFormatError(
            f"version {first[6]}.{first[7]} of .npy is unknown; expected 1.0, 2.0 or 3.0"
        )
    length = int.from_bytes(first[8 : 8 + width], "little")
    if length > MAX_HEADER_BYTES:
        raise LimitError(
            f"the header of a .npy array takes {length} bytes; expected at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES)"
        )
    return 8 + width + length


def parse_header(raw: bytes) -> NpyHeader:
    """Parse a complete header, from its magic to its end.

    Raises, in messages that do not name the file:
        FormatError: the header is malformed.
        UnsupportedFormatError: the dtype cannot be read without unpickling, or the header does not
            name it.
    """
    text = raw[10 if raw[6] == 1 else 12 :].decode("latin-1")
    members = _Tokens(text).dict()
    if set(members) != _KEYS:
        raise FormatError(
            f"the header of a .npy array has the members {sorted(members)}; expected "
            f"{sorted(_KEYS)}"
        )
    shape, descr, fortran = members["shape"], members["descr"], members["fortran_order"]
    if type(shape) is not tuple or type(fortran) is not bool or type(descr) is not str:
        raise FormatError(f"expected a dtype, a bool and a shape, found {text!r:.200}")
    if len(shape) > MAX_DIMS:
        raise LimitError(f"{len(shape)} dimensions; expected at most {MAX_DIMS} (MAX_DIMS)")
    try:
        dtype, swapped = parse_dtype(descr)
    except UnsupportedFormatError as e:
        item_bytes = unread_item_bytes(descr)
        stop = None if item_bytes is None else len(raw) + math.prod(shape) * item_bytes
        raise UnreadableArrayError(str(e), stop) from e
    itemsize = dtypes.itemsize(dtype)
    # As in numpy: axes of length 0 are left out of this product.
    if math.prod(filter(None, shape)) * itemsize > MAX_ARRAY_BYTES:
        raise FormatError(f"the shape {list(shape)} takes more than {MAX_ARRAY_BYTES} bytes")
    fortran = fortran and sum(size != 1 for size in shape) > 1  # otherwise both orders are the same
    stop = len(raw) + math.prod(shape) * itemsize
    return NpyHeader(shape, dtype, swapped, fortran, len(raw), stop)


class _Tokens:
    """The text of a dict of strings, bools and tuples of integers, read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def dict(self) -> dict[str, str | bool | tuple[int, ...]]:
        self._expect("{")
        members: dict[str, str | bool | tuple[int, ...]] = {}
        for kind, key in self._items("}"):
            if kind != "text" or key in members:
                raise self._error("a key, each once")
            self._expect(":")
            members[key] = self._value()
        if self._text[self._at :].strip(" \n\0"):
            raise self._error("the end")
        return members

    def _items(self, end: str) -> Iterator[tuple[str, str]]:
        """Yield the first token of each item, up to the mark `end`; a ',' may follow the last."""
        token = self._next()
        while token != ("mark", end):
            yield token
            token = self._next()
            if token == ("mark", ","):
                token = self._next()
            elif token != ("mark", end):
                raise self._error(f"',' or '{end}'")

    def _value(self) -> str | bool | tuple[int, ...]:
        kind, value = self._next()
        if kind == "text":
            return value
        if kind == "bool":
            return value == "True"
        if (kind, value) == ("mark", "["):
            raise UnreadableArrayError(
                "an array of a structured dtype cannot be read; save each field as an array of its "
                "own"
            )
        if (kind, value) != ("mark", "("):
            raise self._error("a string, a bool or a shape")
        shape: list[int] = []
        for kind, value in self._items(")"):
            if kind != "int" or len(value) > 20:
                raise self._error("an integer of 0 or more")
            shape.append(int(value))
        return tuple(shape)

    def _expect(self, mark: str) -> None:
        if self._next() != ("mark", mark):
            raise self._error(repr(mark))

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error("more")
        self._at = match.end()
        group = match.lastindex or 0
        return ("text", "text", "bool", "int", "mark")[group - 1], match[group]

    def _error(self, expected: str) -> FormatError:
        return FormatError(
            f"the header of a .npy array is damaged: expected {expected} before character "
            f"{self._at} of {self._text!r:.200}"
        )
