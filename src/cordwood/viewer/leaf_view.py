"""The resource of one leaf: its type, its value, and where its bytes are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from cordwood.encoding.digests import DIGEST_BYTES, block_count
from cordwood.index import ARRAY_KINDS, Box, Inline, Leaf, Piece, Span, size_in_memory
from cordwood.io.progress import Report
from cordwood.keypath import format_path
from cordwood.loading.checkpoint import Checkpoint
from cordwood.message_text import counted, size_text
from cordwood.sharding.boxes import whole_box
from cordwood.viewer.sources import Sources
from cordwood.viewer.value_text import dtype_text, literal, shape_of_value, split_path

_MAX_PIECES = 4096
_MAX_WHOLE_VALUE = 100_000  # characters
_MAX_VALUE_BYTES = 1 << 20


def leaf_view(
    sources: Sources,
    report: Report | None,  # noqa: ARG001
    *,
    source: str,
    number: int,
) -> dict[str, object]:
    """Return the type of a leaf, how it was partitioned, and where its bytes are."""
    with sources.checkpoint(source) as checkpoint:
        leaf = leaf_at(checkpoint, number)
        index = checkpoint.index
        path = format_path(leaf.key_path)
        (located,) = checkpoint._reader.with_pieces([leaf])
        pieces = () if isinstance(located.storage, Inline) else located.storage.pieces
        parts = dict.fromkeys([box for piece in pieces for box in _boxes(piece, leaf.shape)])
        return {
            "number": number,
            "path": path,
            "keys": split_path(path, index.naming),
            "kind": leaf.kind,
            "dtype": dtype_text(leaf),
            "shape": shape_of_value(leaf),
            "size_bytes": size_in_memory(leaf),
            "weak_type": leaf.weak_type,
            "prng_impl": leaf.prng_impl,
            "value": _value(checkpoint, leaf),
            "sharding": index.shardings.get(number),
            "stored_shape": leaf.shape,
            "parts": [box._asdict() for box in islice(parts, _MAX_PIECES)],
            "part_count": len(parts),
            "pieces": [_piece(checkpoint, piece, leaf) for piece in pieces[:_MAX_PIECES]],
            "piece_count": len(pieces),
        }


def leaf_at(checkpoint: Checkpoint, number: int) -> Leaf:
    """Return a leaf by its position. Raises KeyError if there are not so many."""
    leaves = checkpoint.index.leaves
    if number >= len(leaves):
        count = counted(len(leaves), "leaf", "leaves")
        raise KeyError(f"{checkpoint.path} has {count}; there is no leaf number {number}")
    return leaves[number]


def _boxes(piece: Piece, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield the boxes of an array that a piece holds."""
    if isinstance(piece.where, Box):
        yield piece.where
    else:
        yield from span_boxes(piece.where, shape)


def span_boxes(span: Span, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield boxes that make up a span of elements of an array.

    >>> [(box.start, box.stop) for box in span_boxes(Span(2, 9), (4, 3))]
    [((0, 2), (1, 3)), ((1, 0), (3, 3))]
    """
    start, stop = span
    if start >= stop:
        return
    if not shape:
        yield whole_box(shape)
        return
    row = math.prod(shape[1:])
    first, begin = divmod(start, row)
    last, end = divmod(stop, row)
    if begin and first == last:
        yield from _in_row(first, Span(begin, end), shape)
        return
    if begin:
        yield from _in_row(first, Span(begin, row), shape)
        first += 1
    if first < last:
        yield Box((first, *([0] * (len(shape) - 1))), (last, *shape[1:]))
    if end:
        yield from _in_row(last, Span(0, end), shape)


def _in_row(row: int, span: Span, shape: tuple[int, ...]) -> Iterator[Box]:
    for start, stop in span_boxes(span, shape[1:]):
        yield Box((row, *start), (row + 1, *stop))


def _piece(checkpoint: Checkpoint, piece: Piece, leaf: Leaf) -> dict[str, object]:
    """Return the place of a piece: its box, file, byte range and digest."""
    boxes = list(_boxes(piece, leaf.shape))
    box = boxes[0] if len(boxes) == 1 else None
    return {
        "start": None if box is None else box.start,
        "stop": None if box is None else box.stop,
        "file": checkpoint.index.sources[piece.source].name,
        "offset": piece.offset,
        "length": piece.length,
        "digest": _digest(checkpoint, piece),
    }


def _digest(checkpoint: Checkpoint, piece: Piece) -> str | None:
    """Return the digest of the bytes of a piece as text; None if there is none."""
    source = checkpoint.index.sources[piece.source]
    digests = checkpoint._reader.digests[piece.source]
    if digests is None:
        at = piece.offset
        crcs = [each.crc32 for each in source.checksums if each.start <= at < each.stop]
        return f"crc32 {crcs[0]:08x}" if crcs else None
    if not piece.length or digests.block_bytes <= 0:
        return None
    first = max(0, piece.offset - digests.start) // digests.block_bytes
    stop = block_count(piece.offset + piece.length - digests.start, digests.block_bytes)
    value = digests.values[first * DIGEST_BYTES : (first + 1) * DIGEST_BYTES].hex()
    more = stop - first - 1
    if more <= 0:
        return f"xxh3-128 {value}"
    blocks = counted(more, "more block", "more blocks")
    return f"xxh3-128 {value} and {blocks} of {size_text(digests.block_bytes)}"


def _value(checkpoint: Checkpoint, leaf: Leaf) -> str | None:
    """Return a Python value as text; None for an array."""
    if leaf.kind in ARRAY_KINDS and not (isinstance(leaf.storage, Inline) and not leaf.shape):
        return None
    if isinstance(leaf.storage, Inline):
        value = leaf.storage.value
    else:
        length = sum([piece.length for piece in leaf.storage.pieces])
        if length > _MAX_VALUE_BYTES:
            return f"({size_text(length)}: too long to show)"
        value = checkpoint[format_path(leaf.key_path)].load(to="numpy")
    return literal(value, _MAX_WHOLE_VALUE)
