"""Parts of leaves that are equal by digest, which need not be read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal, NamedTuple

from cordwood import dtypes
from cordwood.comparing.operands import Operand, StoredRange
from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.index import Box, Encoded, Leaf, Piece, Pieces, Span
from cordwood.plan.split_arrays import all_boxes, chunk_rows, chunks_of, element_range, split_array
from cordwood.sharding.boxes import shape_of, whole_box

PART_BYTES = 4 << 20  # of an array, compared at a time


class DigestKey(NamedTuple):
    """The digests of the blocks of a range: ranges with equal keys and lengths have equal bytes."""

    inside: int  # the offset of the range in its first block
    block_bytes: int
    values: bytes


def digest_key(stored: StoredRange) -> DigestKey | None:
    """Return the digests of the blocks that a range touches; None if not all have one."""
    digests = stored.digests
    if digests is None:
        return None
    size = digests.block_bytes
    first, inside = divmod(stored.start - digests.start, size)
    if first < 0:
        return None
    span = -(-(inside + stored.length) // size) * DIGEST_BYTES
    values = digests.values[first * DIGEST_BYTES : first * DIGEST_BYTES + span]
    return DigestKey(inside, size, values) if len(values) == span else None


def have_equal_digests(one: StoredRange, other: StoredRange) -> bool:
    """Return True if the digests prove that two ranges hold equal bytes.

    They do if both ranges begin at the same place within a block and all blocks that they touch
    have equal digests; then the bytes around the ranges in these blocks are equal as well. False
    means that the digests prove nothing.
    """
    if one.length != other.length:
        return False  # compressed chunks may have other lengths
    if not one.length:
        return True
    key = digest_key(one)
    return key is not None and key == digest_key(other)


def have_unequal_digests(one: StoredRange, other: StoredRange) -> bool:
    """Return True if the lengths or the digests prove that two ranges hold different bytes.

    Digests do if a block that lies completely in its range differs from the block at the same place
    of the other range. False means that the digests prove nothing.
    """
    if one.length != other.length:
        return True
    a, b = digest_key(one), digest_key(other)
    if not one.length or a is None or b is None or a[:2] != b[:2]:
        return False
    first = 1 if a.inside else 0
    last = (a.inside + one.length) // a.block_bytes
    if all(each.start + each.length == each.source_bytes for each in (one, other)):
        last = len(a.values) // DIGEST_BYTES  # the last blocks end with the ranges
    part = slice(first * DIGEST_BYTES, last * DIGEST_BYTES)
    return a.values[part] != b.values[part]


def unequal_boxes(one: Operand, i: int, other: Operand, j: int) -> Iterator[Box]:
    """Yield the boxes of a pair of array leaves that are not equal by their digests."""
    a, b = one.pieces(i), other.pieces(j)
    leaf = one.index.leaves[i]
    item = dtypes.itemsize(leaf.dtype)
    pieces = _paired_pieces(a, b)
    if a is None or pieces is None:
        yield from all_boxes(
            leaf.shape, item_bytes=item, limit_bytes=PART_BYTES, chunk_shape=chunks_of(a, b)
        )
        return
    raw = isinstance(a.storage, Pieces) and a.storage.encoding in ("raw", "swapped")
    for piece, other_piece in pieces:
        around = piece.where if isinstance(piece.where, Box) else whole_box(leaf.shape)
        bytes_of_one, bytes_of_other = one.stored(piece), other.stored(other_piece)
        if have_equal_digests(bytes_of_one, bytes_of_other):
            continue
        shape = shape_of(around)
        rows = chunk_rows(a)
        for part in split_array(shape, item_bytes=item, limit_bytes=PART_BYTES, rows=rows):
            start, stop = (item * n for n in element_range(part, shape))
            length = stop - start
            if raw and have_equal_digests(
                bytes_of_one.part(start, length), bytes_of_other.part(start, length)
            ):
                continue
            yield _moved(part, around)


def compare_digests(
    one: Operand, i: int, other: Operand, j: int
) -> Literal["identical", "bytes", "unread"]:
    """Compare two leaves by their digests alone; no element is read.

    "bytes": stored bytes of the leaves differ. Their values may still be equal: -0.0 and 0.0, or
    the same elements compressed in another way. "unread": there are no digests to compare, or
    only those of blocks that hold bytes of other leaves too.
    """
    pieces = _paired_pieces(one.pieces(i), other.pieces(j))
    if pieces is None:
        return "unread"
    pairs = [(one.stored(piece), other.stored(other_piece)) for piece, other_piece in pieces]
    if all(have_equal_digests(piece, other_piece) for piece, other_piece in pairs):
        return "identical"
    differ = any(have_unequal_digests(piece, other_piece) for piece, other_piece in pairs)
    return "bytes" if differ else "unread"


def contents_by_digest(operand: Operand, number: int) -> Hashable | None:
    """Return a value that is equal for array leaves of equal elements; None if unknown.

    Two leaves with equal elements may have different values: if they are cut in other pieces, or
    begin at another place within a block.
    """
    leaf = operand.pieces(number)
    if leaf is None:
        return None
    storage = leaf.storage
    assert isinstance(storage, Pieces | Encoded)
    digests = []
    for piece in storage.pieces:
        if not piece.length:
            continue
        key = digest_key(operand.stored(piece))
        if key is None:
            return None
        is_whole = isinstance(storage, Pieces) and len(storage.pieces) == 1
        digests.append((None if is_whole else piece.where, piece.length, key))
    return (*storage[1:], tuple(digests)) if digests else None


def _paired_pieces(a: Leaf | None, b: Leaf | None) -> list[tuple[Piece, Piece]] | None:
    """Return the pieces of two leaves; None unless they hold the same boxes, encoded alike."""
    if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
        return None
    one, other = a.storage, b.storage
    if isinstance(one, Encoded) and isinstance(other, Encoded):
        alike = (one.chunk_shape, one.codec) == (other.chunk_shape, other.codec)
    elif isinstance(one, Pieces) and isinstance(other, Pieces):
        alike = one.encoding == other.encoding
        if alike and len(one.pieces) == len(other.pieces) == 1:
            # Each is the whole leaf; of chunks, others may hold the fill value.
            return [(one.pieces[0], other.pieces[0])]
        alike = alike and not any(isinstance(piece.where, Span) for piece in one.pieces)
    else:
        return None
    if not alike or [each.where for each in one.pieces] != [each.where for each in other.pieces]:
        return None
    return list(zip(one.pieces, other.pieces, strict=True))


def _moved(box: Box, around: Box) -> Box:
    """Return a box of a part of an array as a box of the array."""
    return Box(
        tuple(map(int.__add__, box.start, around.start)),
        tuple(map(int.__add__, box.stop, around.start)),
    )
