"""Large arrays, which Flax stores as a dict of flat chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cordwood import dtypes
from cordwood.errors import FormatError
from cordwood.formats.flax_msgpack.wire import CHUNKED_MARKER
from cordwood.index import Encoding, Inline, Leaf, Node, Piece, Pieces, Span
from cordwood.keypath import KeyPath

_MEMBERS = {CHUNKED_MARKER, "shape", "chunks"}


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
    if set(nodes[0].keys) != _MEMBERS or [node.kind for node in nodes].count("dict") != 3:
        return None
    parts: dict[str, dict[str, Leaf]] = {"shape": {}, "chunks": {}}
    for leaf in leaves:
        keys = leaf.key_path[len(path) :]
        if len(keys) == 2 and keys[0] in parts and isinstance(keys[1], str):
            parts[str(keys[0])][keys[1]] = leaf
        elif not (keys == (CHUNKED_MARKER,) and leaf.kind == "bool" and _value(leaf)):
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
    keys = [str(i) for i in range(len(parts))]
    for key in keys:
        if key not in parts:
            raise FormatError(
                f"{at}: expected keys '0' to {keys[-1]!r} in {member!r}, {key!r} is missing"
            )
    return [parts[key] for key in keys]


def _dimension(leaf: Leaf, at: str) -> int:
    value = _value(leaf)
    if leaf.kind != "int" or not isinstance(value, int) or value < 0:
        raise FormatError(f"{at}: expected dimensions in 'shape', found {value!r} ({leaf.kind})")
    return value


def _value(leaf: Leaf) -> object:
    return leaf.storage.value if isinstance(leaf.storage, Inline) else None


def _join(path: KeyPath, shape: tuple[int, ...], chunks: Sequence[Leaf], at: str) -> Leaf:
    dtype = chunks[0].dtype
    encoding: Encoding = "raw"
    pieces: list[Piece] = []
    start = 0
    for i, chunk in enumerate(chunks):
        storage = chunk.storage
        if not isinstance(storage, Pieces) or chunk.kind != "numpy" or len(chunk.shape) != 1:
            found = (
                f"{chunk.dtype}{list(chunk.shape)}"
                if chunk.dtype
                else f"a value of kind {chunk.kind}"
            )
            raise FormatError(f"{at}: expected a flat array as chunk {i}, found {found}")
        encoding = encoding if pieces else storage.encoding
        if (chunk.dtype, storage.encoding) != (dtype, encoding):
            raise FormatError(f"{at}: chunk {i} is {chunk.dtype}, and chunk 0 {dtype}")
        stop = start + chunk.shape[0]
        pieces.append(storage.pieces[0]._replace(where=Span(start, stop)))
        start = stop
    expected = math.prod(shape)
    if start != expected or expected * dtypes.itemsize(dtype) >= 2**63:
        raise FormatError(
            f"{at}: expected {expected} elements for shape {list(shape)}, found {start} in its "
            "chunks"
        )
    return Leaf(path, "numpy", shape, dtype, Pieces(tuple(pieces), encoding))
