"""Arrays of Flax's msgpack: the header inside an extension, and large ones as a dict of chunks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.formats.flax_msgpack.wire import CHUNKED_MARKER, Token, decode_text, read_token
from cordwood.index import (
    MAX_ARRAY_BYTES,
    MAX_DIMS,
    Encoding,
    Inline,
    Leaf,
    Piece,
    Pieces,
    Span,
)
from cordwood.keypath import KeyPath
from cordwood.message_text import counted
from cordwood.tree.structure import Node

_MAX_NAME_BYTES = 64
# Codes that other writers use instead of names: '>f4', '<i2', '|b1', '<M8[ns]'.
_CODE = re.compile(r"([<>=|]?)(b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[mM]8(?:\[\w+\])?)")


class ArrayHeader(NamedTuple):
    """The shape, the dtype and the offset of the elements of an array."""

    shape: tuple[int, ...]
    dtype: str
    encoding: Encoding
    start: int  # of the elements, in bytes from the start of the file


def read_array_header(data: memoryview, start: int, stop: int, name: str) -> ArrayHeader:
    """Read the payload of an array or scalar extension, bytes [start, stop).

    Raises FormatError unless it is [shape, dtype, elements] with sizes that agree.
    """
    token = _token(data, start, stop, name)
    if token.kind != "array" or token.value != 3:
        raise FormatError(
            f"{name}: byte {start}: expected [shape, dtype, elements] of an array, "
            f"found {_describe(token)}"
        )
    shape, pos = _read_shape(data, token.start, stop, name)
    at = pos
    token = _token(data, pos, stop, name)
    if token.kind not in ("str", "bin") or token.stop - token.start > _MAX_NAME_BYTES:
        raise FormatError(
            f"{name}: byte {pos}: expected the name of a dtype, found {_describe(token)}"
        )
    dtype, encoding = _read_dtype(decode_text(data, token.start, token.stop, name), pos, name)
    pos = token.stop
    token = _token(data, pos, stop, name)
    if token.kind not in ("bin", "str"):
        raise FormatError(
            f"{name}: byte {pos}: expected the elements of an array as binary, "
            f"found {_describe(token)}"
        )
    if token.stop != stop:
        raise FormatError(
            f"{name}: byte {token.stop}: expected the end of the array's extension, "
            f"found {counted(stop - token.stop, 'more byte')}"
        )
    nbytes = token.stop - token.start
    shape = _check_size(shape, dtype, nbytes, at, name)
    return ArrayHeader(shape, dtype, encoding, token.start)


def _token(data: memoryview, pos: int, stop: int, name: str) -> Token:
    if pos < stop:
        token = read_token(data, pos, name)
        if token.stop <= stop:
            return token
    raise FormatError(
        f"{name}: byte {pos}: an array's extension ends at byte {stop}, before its contents do"
    )


def _read_shape(data: memoryview, pos: int, stop: int, name: str) -> tuple[tuple[int, ...], int]:
    token = _token(data, pos, stop, name)
    if token.kind != "array":
        raise FormatError(
            f"{name}: byte {pos}: expected the shape of an array, found {_describe(token)}"
        )
    if token.value > MAX_DIMS:
        raise LimitError(
            f"{name}: byte {pos}: an array has {token.value} dimensions; "
            f"at most {MAX_DIMS} are read"
        )
    shape = []
    pos = token.start
    for _ in range(token.value):
        token = _token(data, pos, stop, name)
        if token.kind != "int":
            raise FormatError(
                f"{name}: byte {pos}: expected a dimension of an array, found {_describe(token)}"
            )
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
    match = _CODE.fullmatch(text)
    if match is not None:
        import numpy as np

        try:
            dtype = np.dtype(text)
            return dtypes.name_of(dtype), "swapped" if dtype.str[0] == ">" else "raw"
        except TypeError:
            pass
    raise FormatError(
        f"{name}: byte {pos}: expected a numeric dtype, found {text!r}"
        + (
            ", which Flax writes but cannot read"
            if text.startswith(("str", "bytes", "void", "record"))
            else ""
        )
    )


def _check_size(
    shape: tuple[int, ...], dtype: str, nbytes: int, pos: int, name: str
) -> tuple[int, ...]:
    """Check the size; return the shape, with a dimension of -1 replaced by its value."""
    itemsize = dtypes.itemsize(dtype)
    if math.prod([size for size in shape if size > 0]) * itemsize > MAX_ARRAY_BYTES:
        raise LimitError(f"{name}: byte {pos}: {dtype}{list(shape)} has more than 2**63 bytes")
    if -1 in shape:
        rest = -math.prod(shape) * itemsize
        if rest == 0 or nbytes % rest:
            raise FormatError(
                f"{name}: byte {pos}: {counted(nbytes, 'byte')} of {dtype} cannot make "
                f"shape {list(shape)}"
            )
        return tuple([nbytes // rest if size == -1 else size for size in shape])
    expected = math.prod(shape) * itemsize
    if expected != nbytes:
        raise FormatError(
            f"{name}: byte {pos}: expected {counted(expected, 'byte')} for {dtype}{list(shape)}, "
            f"found {nbytes}"
        )
    return shape


def _describe(token: Token) -> str:
    if token.kind in ("str", "bin"):
        return f"a {token.kind} of {counted(token.stop - token.start, 'byte')}"
    if token.kind in ("array", "map"):
        return f"{'an array' if token.kind == 'array' else 'a map'} of {token.value}"
    if token.kind == "ext":
        return f"extension {token.value}"
    return "nil" if token.kind == "nil" else f"the {token.kind} {token.value}"


_KEYS = {CHUNKED_MARKER, "shape", "chunks"}


def join_chunks(
    path: KeyPath, nodes: Sequence[Node], leaves: Sequence[Leaf], pos: int, name: str
) -> Leaf | None:
    """Return the array that the dict at `path` encodes, or None if it is an ordinary dict.

    Args:
        path: the key path of the dict.
        nodes: the node of the dict and all nodes below it.
        leaves: the leaves below it.
        pos: the byte offset of the dict, for errors.
        name: the name of the file, for errors.

    Raises:
        FormatError: the dict is marked as an array, but its parts do not make one.
    """
    if set(nodes[0].keys) != _KEYS or [node.kind for node in nodes].count("dict") != 3:
        return None
    parts: dict[str, dict[str, Leaf]] = {"shape": {}, "chunks": {}}
    for leaf in leaves:
        rest = leaf.key_path[len(path) :]
        if len(rest) == 2 and rest[0] in parts and isinstance(rest[1], str):
            parts[str(rest[0])][rest[1]] = leaf
        elif not (rest == (CHUNKED_MARKER,) and leaf.kind == "bool" and _value(leaf)):
            return None
    if len(nodes) != 3 + len(leaves):  # there is a list or tuple in it
        return None
    at = f"{name}: byte {pos}: a chunked array"
    shape = tuple(_dimension(leaf, at) for leaf in _in_order(parts["shape"], "shape", at))
    chunks = _in_order(parts["chunks"], "chunks", at)
    if not chunks:
        raise FormatError(f"{at} has no chunks")
    return _join(path, shape, chunks, at)


def _in_order(parts: Mapping[str, Leaf], member: str, at: str) -> list[Leaf]:
    missing = [key for key in map(str, range(len(parts))) if key not in parts]
    if missing:
        raise FormatError(
            f"{at}: expected keys '0' to '{len(parts) - 1}' in {member!r}, "
            f"{missing[0]!r} is missing"
        )
    return [parts[str(i)] for i in range(len(parts))]


def _dimension(leaf: Leaf, at: str) -> int:
    value = _value(leaf)
    if leaf.kind != "int" or not isinstance(value, int) or value < 0:
        raise FormatError(f"{at}: expected dimensions in 'shape', found {value!r} ({leaf.kind})")
    return value


def _value(leaf: Leaf) -> object:
    return leaf.storage.value if isinstance(leaf.storage, Inline) else None


def _join(path: KeyPath, shape: tuple[int, ...], chunks: Sequence[Leaf], at: str) -> Leaf:
    first = chunks[0]
    pieces: list[Piece] = []
    start = 0
    for i, chunk in enumerate(chunks):
        storage = chunk.storage
        if not isinstance(storage, Pieces) or chunk.kind != "numpy" or len(chunk.shape) != 1:
            raise FormatError(
                f"{at}: expected a flat array as chunk {i}, found {_describe_chunk(chunk)}"
            )
        if chunk.dtype != first.dtype or storage.encoding != _encoding(first):
            raise FormatError(f"{at}: chunk {i} is {chunk.dtype}, and chunk 0 {first.dtype}")
        stop = start + chunk.shape[0]
        pieces.append(storage.pieces[0]._replace(where=Span(start, stop)))
        start = stop
    expected = math.prod(shape)
    if start != expected or expected * dtypes.itemsize(first.dtype) >= 2**63:
        raise FormatError(
            f"{at}: expected {expected} elements for shape {list(shape)}, found {start} in its "
            "chunks"
        )
    return Leaf(path, "numpy", shape, first.dtype, Pieces(tuple(pieces), _encoding(first)))


def _encoding(leaf: Leaf) -> Encoding:
    assert isinstance(leaf.storage, Pieces)
    return leaf.storage.encoding


def _describe_chunk(leaf: Leaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if leaf.dtype else f"a value of kind {leaf.kind}"
