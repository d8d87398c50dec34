"""The indexes of a .npy file and of an equinox file: the headers of arrays, and their elements.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: the magic, two bytes of
version, a little-endian length (of two bytes in version 1.0, of four later), and the text of a
Python dict. The text is parsed token by token and never evaluated. numpy's own reader compiles it
(`ast.literal_eval`), accepts keys that occur twice and negative lengths, and raises MemoryError for
text that nests deeply.

An equinox file is .npy after .npy, without names: `equinox.tree_serialise_leaves` writes one for
each leaf that is an array or a number, in the order of `jax.tree.leaves`. Other leaves (functions,
strings) are not stored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError, TruncatedError, UnsupportedFormatError
from cordwood.index import (
    LEAF,
    MAX_ARRAY_BYTES,
    MAX_DIMS,
    Box,
    Codec,
    Encoded,
    Index,
    Leaf,
    Node,
    Piece,
    Pieces,
    Source,
    Span,
    unreadable_leaf,
)
from cordwood.io.open_files import ReadableFile
from cordwood.message_text import counted
from cordwood.sharding.boxes import whole_box


def read_index(file: ReadableFile) -> Index:
    """Read the index of a .npy file: one numpy array is the tree. The file has no checksums.

    numpy writes bfloat16, which it does not have, as two bytes of void; they are read as bfloat16.
    The other types of ml_dtypes cannot be distinguished in this format.

    Raises:
        FormatError: it is not a .npy file, or holds more than one array.
        TruncatedError: it ends too early.
        LimitError: its header is longer than numpy allows, or has more dimensions.
        UnsupportedFormatError: its elements are Python objects, text, or of a type that the
            header does not name.
    """
    header = read_array_header(file, 0)
    if header.stop != file.size_bytes:
        raise FormatError(
            f"{file.name}: byte {header.stop}: expected the end of the data, found "
            f"{counted(file.size_bytes - header.stop, 'more byte')}: if these are more arrays, "
            'they have no names: load it with like= and format="eqx"'
        )
    storage = raw_storage(header, header.start)
    leaf = Leaf((), "numpy", header.shape, header.dtype, storage)
    return Index("npy", (LEAF,), (leaf,), (Source(file.name, file.size_bytes),))


def read_eqx_index(file: ReadableFile) -> Index:
    """Read the index of an equinox file: a list of numpy arrays. The file has no checksums.

    A line of JSON in front of the arrays, as equinox's documentation writes hyperparameters, is the
    metadata: the members of an object, those that are no strings as JSON.

    An array of text, or of a type that .npy does not name (float8, int4), is a leaf that cannot be
    read.

    Raises:
        FormatError: something other than a .npy array follows; the message names the byte.
        TruncatedError: the file ends inside an array.
        LimitError: it holds more than MAX_ARRAYS.
        UnsupportedFormatError: an array of unknown size cannot be read: of Python objects, or of a
            structured dtype.
    """
    leaves: list[Leaf] = []
    line = line_in_front(file.read(0, min(MAX_LINE_BYTES, file.size_bytes)))
    metadata = {} if line is None else _metadata_of(line, file.name)
    at = 0 if line is None else len(line)
    while at < file.size_bytes:
        if len(leaves) == MAX_ARRAYS:
            raise LimitError(f"{file.name}: more than {MAX_ARRAYS} arrays (MAX_ARRAYS)")
        head = file.read(at, min(len(MAGIC), file.size_bytes - at))
        if head != MAGIC:
            raise FormatError(
                f"{file.name}: byte {at}: expected the end or another .npy array after "
                f"{counted(len(leaves), 'array')}, found {head!r}: it is damaged, or was written "
                "with a custom filter_spec, which only equinox can read"
            )
        key_path = (len(leaves),)
        try:
            header = read_array_header(file, at)
        except UnreadableArrayError as e:
            if e.stop is None:
                raise UnsupportedFormatError(
                    f"{e} (it is array {len(leaves)}, counted from 0, and its size is unknown: "
                    "what follows it cannot be read either)"
                ) from e
            leaves.append(unreadable_leaf(key_path, e.reason))
            at += e.stop
            continue
        storage = raw_storage(header, at + header.start)
        leaves.append(Leaf(key_path, "numpy", header.shape, header.dtype, storage))
        at += header.stop
    structure = (Node("list", len(leaves)), *[LEAF] * len(leaves))
    source = Source(file.name, file.size_bytes)
    return Index("eqx", structure, tuple(leaves), (source,), "positions", metadata)


def line_in_front(head: bytes) -> bytes | None:
    """Return the line of JSON in front of the first array, with its end; None for none.

    Args:
        head: the first bytes of a file, at most MAX_LINE_BYTES.
    """
    at = head.find(b"\n" + MAGIC)
    if not head[:1] or head[0] not in b'{["-0123456789tfn' or at < 0 or b"\n" in head[:at]:
        return None
    return head[: at + 1]


def _metadata_of(line: bytes, name: str) -> dict[str, str]:
    value = parse_json(line, f"{name}: the line in front of the arrays", start=0)
    if type(value) is not dict:
        return {"json": line.decode().strip()}
    return {
        key: member if type(member) is str else json.dumps(member) for key, member in value.items()
    }


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


MAGIC = b"\x93NUMPY"
FIRST_BYTES = 12  # the bytes that `header_bytes` needs
MAX_ARRAYS = 1 << 20  # of an equinox file
MAX_LINE_BYTES = 1 << 20  # of JSON in front of the arrays of an equinox file
MAX_HEADER_BYTES = 10_000  # of the dict's text: numpy's own limit

_TOKEN = re.compile(r"""[ \n]*(?:'([^'\\\n]*)'|"([^"\\\n]*)"|(True|False)|([0-9]+)L?|(.))""", re.S)
_KEYS = {"descr", "fortran_order", "shape"}
_CODE = re.compile(r"([<>|])([A-Za-z])([0-9]{0,9})(\[[^\]]{1,20}\])?")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_TIMES = {"M": "datetime64", "m": "timedelta64"}


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
        dtype, swapped = _parse_descr(descr)
    except UnsupportedFormatError as e:
        item_bytes = _unread_item_bytes(descr)
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


def _parse_descr(descr: str) -> tuple[str, bool]:
    """Return the name of a dtype, and whether its elements are big-endian."""
    match = _CODE.fullmatch(descr)
    if match is None:
        raise FormatError(f"the dtype {descr!r:.80} is not a dtype of numpy")
    order, kind, size, unit = match.groups()
    if kind == "O":
        raise UnsupportedFormatError(
            "an array of Python objects is pickled, which cordwood never loads; if you trust "
            "where it is from, numpy.load(..., allow_pickle=True) it and save its contents as "
            "arrays of numbers"
        )
    if kind in "SUTa":
        raise UnsupportedFormatError(
            f"an array of text (dtype {descr}) cannot be read; numpy.load it, and save numbers"
        )
    swapped = order == ">"
    if kind == "V" and size == "2":
        return "bfloat16", swapped  # numpy writes so the only two-byte type that it does not have
    if kind == "V":
        types = f"types of {counted(int(size or 0), 'byte')}"
        if size == "1":
            types = "float8 types, int4 and other one-byte types"
        unsigned = {"4": "uint32", "8": "uint64"}.get(size, "uint8")
        raise UnsupportedFormatError(
            f"dtype {descr} does not say what the elements are: numpy writes it for {types} that "
            "numpy does not have; save them in a format that does, or .view() them as "
            f"{unsigned} before saving"
        )
    name = ""
    if kind in _TIMES and size == "8":
        name = _TIMES[kind] + (unit or "")
    elif kind in _KINDS and size and not unit:
        name = "bool" if (kind, size) == ("b", "1") else f"{_KINDS[kind]}{8 * int(size)}"
    if not dtypes.is_storable(name) or name in ("int1", "uint1"):
        raise FormatError(f"the dtype {descr!r:.80} is unknown here")
    return name, swapped and dtypes.itemsize(name) > 1


def _unread_item_bytes(descr: str) -> int | None:
    """Return the size of an element of text or of void; None where it is unknown."""
    match = _CODE.fullmatch(descr)
    if match is None or match[2] not in "SUaV" or not match[3]:
        return None
    return int(match[3]) * (4 if match[2] == "U" else 1)


_CHUNK_BYTES = 4 << 20  # of an array in Fortran order, which is transposed in parts
_MAX_CHUNKS = 4096


def raw_storage(header: NpyHeader, offset: int) -> Pieces | Encoded:
    """Return the storage of uncompressed elements that begin at `offset` of source 0.

    In C order they are one range of bytes. In Fortran order they are several ranges, each with some
    indices of the last axis and all indices of the other axes.
    """
    shape, length = header.shape, header.stop - header.start
    if not length:
        return Pieces(())
    if not header.fortran:
        span = Span(0, math.prod(shape))
        return Pieces((Piece(span, 0, offset, length),), "swapped" if header.swapped else "raw")
    rows = shape[-1]
    count = _chunk_count(rows, length)
    step, step_bytes = rows // count, length // count
    pieces = []
    for i in range(count):
        box = Box((*(0,) * (len(shape) - 1), i * step), (*shape[:-1], (i + 1) * step))
        pieces.append(Piece(box, 0, offset + i * step_bytes, step_bytes))
    return Encoded(tuple(pieces), (*shape[:-1], step), Codec(None, "F", header.swapped))


def _chunk_count(rows: int, length: int) -> int:
    """Return the number of equal parts of the last axis, of about _CHUNK_BYTES if possible."""
    least = -(-length // _CHUNK_BYTES)
    for count in range(least, min(rows, least + _MAX_CHUNKS) + 1):
        if rows % count == 0:
            return count
    return 1


def deflated_storage(
    header: NpyHeader, offset: int, length: int, *, crc32: int
) -> Pieces | Encoded:
    """Return the storage of an array in a deflate stream of source 0, header included."""
    if header.stop == header.start:
        return Pieces(())
    piece = Piece(whole_box(header.shape), 0, offset, length)
    codec = Codec("deflate", "F" if header.fortran else "C", header.swapped, header.start, crc32)
    return Encoded((piece,), header.shape, codec)
