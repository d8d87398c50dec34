"""The parts of two leaves that are not equal by their digests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal

from cordwood import dtypes
from cordwood.api.diff_operands import Operand
from cordwood.index import Box, Encoded, Leaf, Piece, Pieces, Span
from cordwood.plan.equal_digests import digest_key, have_equal_digests, have_unequal_digests
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import shape_of, whole_box

_PART_BYTES = 4 << 20  # of an array, compared at a time


def unequal_boxes(one: Operand, i: int, other: Operand, j: int) -> Iterator[Box]:
    """Yield the boxes of a pair of array leaves that are not equal by their digests."""
    a, b = one.pieces(i), other.pieces(j)
    leaf = one.index.leaves[i]
    item = dtypes.itemsize(leaf.dtype)
    if a is None or b is None or not _are_cut_alike(a, b):
        rows = chunk_rows(a) or chunk_rows(b)
        yield from split_array(leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows or 1)
        return
    assert isinstance(a.storage, Pieces | Encoded)
    assert isinstance(b.storage, Pieces | Encoded)
    raw = isinstance(a.storage, Pieces) and a.storage.encoding in ("raw", "swapped")
    for mine, theirs in zip(a.storage.pieces, b.storage.pieces, strict=True):
        around = mine.where if isinstance(mine.where, Box) else whole_box(leaf.shape)
        if _are_equal_pieces(one, mine, other, theirs):
            continue
        shape = shape_of(around)
        rows = chunk_rows(a) or 1
        for part in split_array(shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
            start, stop = (item * n for n in element_range(part, shape))
            if not raw or not _are_equal(one, mine, other, theirs, start, stop - start):
                yield _moved(part, around)


def compare_digests(
    one: Operand, i: int, other: Operand, j: int
) -> Literal["equal", "unequal", "unknown"]:
    """Compare two leaves by their digests alone; no element is read.

    "unequal": stored bytes of the leaves differ. Their values may still be equal: -0.0 and 0.0, or
    the same elements compressed in another way. "unknown": there are no digests to compare, or
    only those of blocks that hold bytes of other leaves too.
    """
    a, b = one.pieces(i), other.pieces(j)
    if a is None or b is None or not _are_cut_alike(a, b):
        return "unknown"
    assert isinstance(a.storage, Pieces | Encoded)
    assert isinstance(b.storage, Pieces | Encoded)
    pairs = list(zip(a.storage.pieces, b.storage.pieces, strict=True))
    if all(_are_equal_pieces(one, mine, other, theirs) for mine, theirs in pairs):
        return "equal"
    differ = any(_are_unequal_pieces(one, mine, other, theirs) for mine, theirs in pairs)
    return "unequal" if differ else "unknown"


def contents_by_digest(operand: Operand, number: int) -> Hashable | None:
    """Return a value that is equal for array leaves of equal elements; None if unknown.

    Two leaves with equal elements may have different values: if they are cut in other pieces, or
    begin at another place within a block.
    """
    leaf = operand.pieces(number)
    if leaf is None or (isinstance(leaf.storage, Pieces) and _has_several_spans(leaf.storage)):
        return None
    storage = leaf.storage
    assert isinstance(storage, Pieces | Encoded)
    digests = []
    for piece in storage.pieces:
        if not piece.length:
            continue
        key = digest_key(operand.digests(piece.source), piece.offset, piece.length)
        if key is None:
            return None
        digests.append((piece.where if len(storage.pieces) > 1 else None, piece.length, key))
    return (*storage[1:], tuple(digests)) if digests else None


def chunk_rows(leaf: Leaf | None) -> int:
    """Return the number of rows of a chunk that is decoded whole; 0 if there are no chunks."""
    if leaf is None or not isinstance(leaf.storage, Encoded) or not leaf.storage.chunk_shape:
        return 0
    return leaf.storage.chunk_shape[0]


def _are_equal(
    one: Operand, mine: Piece, other: Operand, theirs: Piece, start: int, length: int
) -> bool:
    return have_equal_digests(
        one.digests(mine.source),
        mine.offset + start,
        other.digests(theirs.source),
        theirs.offset + start,
        length,
    )


def _are_equal_pieces(one: Operand, mine: Piece, other: Operand, theirs: Piece) -> bool:
    equal = mine.length == theirs.length  # compressed chunks may have other lengths
    return equal and _are_equal(one, mine, other, theirs, 0, mine.length)


def _are_unequal_pieces(one: Operand, mine: Piece, other: Operand, theirs: Piece) -> bool:
    return mine.length != theirs.length or have_unequal_digests(
        one.digests(mine.source),
        mine.offset,
        one.source_bytes(mine.source),
        other.digests(theirs.source),
        theirs.offset,
        other.source_bytes(theirs.source),
        mine.length,
    )


def _are_cut_alike(a: Leaf, b: Leaf) -> bool:
    """Return True if the pieces of two leaves hold the same boxes, encoded in the same way."""
    one, other = a.storage, b.storage
    if type(one) is not type(other) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if isinstance(one, Encoded) and isinstance(other, Encoded):
        if (one.chunk_shape, one.codec) != (other.chunk_shape, other.codec):
            return False
    elif isinstance(one, Pieces) and isinstance(other, Pieces):
        if one.encoding != other.encoding or _has_several_spans(one):
            return False
    else:
        return False
    if len(one.pieces) == len(other.pieces) == 1:  # each is the whole leaf
        return True
    pairs = zip(one.pieces, other.pieces, strict=False)
    return len(one.pieces) == len(other.pieces) and all(
        mine.where == theirs.where for mine, theirs in pairs
    )


def _has_several_spans(storage: Pieces) -> bool:
    return len(storage.pieces) > 1 and any(
        isinstance(piece.where, Span) for piece in storage.pieces
    )


def _moved(box: Box, around: Box) -> Box:
    """Return a box of a part of an array as a box of the array."""
    return Box(
        tuple(map(int.__add__, box.start, around.start)),
        tuple(map(int.__add__, box.stop, around.start)),
    )
