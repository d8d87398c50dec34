"""Digests of two trees compared: parts of leaves that are equal, and leaves that were renamed.

Where the digests of leaves that were renamed are not comparable, their elements are digested.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.api.array_change import flat_native
from cordwood.api.diff_operands import Array, Operand, map_parts
from cordwood.encoding.digests import digest_of
from cordwood.index import ARRAY_KINDS, Box, Encoded, Leaf, Piece, Pieces, Span
from cordwood.plan.equal_digests import digest_key, have_equal_digests, have_unequal_digests
from cordwood.plan.pair_leaves import UnpairedLeaf, pair_renamed
from cordwood.plan.split_arrays import (
    Part,
    all_boxes,
    chunk_rows,
    chunks_of,
    element_range,
    split_array,
)
from cordwood.sharding.boxes import element_count, shape_of, whole_box

_PART_BYTES = 4 << 20  # of an array, compared at a time
_START_BYTES = 64 << 10  # of a leaf that may have been renamed, read first

Contents: TypeAlias = dict[int, Hashable]  # of leaves, by position; equal for equal leaves


def unequal_boxes(one: Operand, i: int, other: Operand, j: int) -> Iterator[Box]:
    """Yield the boxes of a pair of array leaves that are not equal by their digests."""
    a, b = one.pieces(i), other.pieces(j)
    leaf = one.index.leaves[i]
    item = dtypes.itemsize(leaf.dtype)
    if a is None or b is None or not _are_cut_alike(a, b):
        yield from all_boxes(
            leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, chunk_shape=chunks_of(a, b)
        )
        return
    assert isinstance(a.storage, Pieces | Encoded)
    assert isinstance(b.storage, Pieces | Encoded)
    raw = isinstance(a.storage, Pieces) and a.storage.encoding in ("raw", "swapped")
    for mine, theirs in zip(a.storage.pieces, b.storage.pieces, strict=True):
        around = mine.where if isinstance(mine.where, Box) else whole_box(leaf.shape)
        if _are_equal_pieces(one, mine, other, theirs):
            continue
        shape = shape_of(around)
        rows = chunk_rows(a)
        for part in split_array(shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
            start, stop = (item * n for n in element_range(part, shape))
            if not raw or not _are_equal(one, mine, other, theirs, start, stop - start):
                yield _moved(part, around)


def compare_digests(
    one: Operand, i: int, other: Operand, j: int
) -> Literal["identical", "bytes", "unread"]:
    """Compare two leaves by their digests alone; no element is read.

    "bytes": stored bytes of the leaves differ. Their values may still be equal: -0.0 and 0.0, or
    the same elements compressed in another way. "unread": there are no digests to compare, or
    only those of blocks that hold bytes of other leaves too.
    """
    a, b = one.pieces(i), other.pieces(j)
    if a is None or b is None or not _are_cut_alike(a, b):
        return "unread"
    assert isinstance(a.storage, Pieces | Encoded)
    assert isinstance(b.storage, Pieces | Encoded)
    pairs = list(zip(a.storage.pieces, b.storage.pieces, strict=True))
    if all(_are_equal_pieces(one, mine, other, theirs) for mine, theirs in pairs):
        return "identical"
    differ = any(_are_unequal_pieces(one, mine, other, theirs) for mine, theirs in pairs)
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
        key = digest_key(operand.digests(piece.source), piece.offset, piece.length)
        if key is None:
            return None
        is_whole = isinstance(storage, Pieces) and len(storage.pieces) == 1
        digests.append((None if is_whole else piece.where, piece.length, key))
    return (*storage[1:], tuple(digests)) if digests else None


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
    if isinstance(one, Pieces) and len(one.pieces) == len(other.pieces) == 1:
        return True  # each is the whole leaf; of chunks, others may hold the fill value
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


class RenamedLeaves(NamedTuple):
    """The leaves of one tree that are in another one at a different key path."""

    pairs: list[tuple[int, int]]  # positions in both
    read_bytes: int  # of elements, per side


def renamed_leaves(
    one: Operand,
    first_only: Sequence[int],
    other: Operand,
    second_only: Sequence[int],
    *,
    read: bool,
) -> RenamedLeaves:
    """Return the array leaves of equal type and elements; `pair_renamed` says which are paired.

    Leaves with equal digests are equal, and are not read. Of the others, if `read`, the first
    64 KiB are read, and the rest of a leaf only if its first 64 KiB are those of a leaf of the
    other tree.

    Args:
        one: the first tree.
        first_only: the positions of its leaves whose key paths the second lacks.
        other: the second tree.
        second_only: the positions of its leaves whose key paths the first lacks.
        read: False reads no elements.
    """
    ours, theirs = _common(_types(one, first_only), _types(other, second_only))
    pairs = _paired(one, _with_digests(one, ours), other, _with_digests(other, theirs))
    if not read:
        return RenamedLeaves(pairs, 0)
    for i, j in pairs:
        del ours[i], theirs[j]
    read_bytes = 0
    for start_only in (True, False):
        ours, theirs = _common(ours, theirs)
        rows = _chunk_rows(((one, ours), (other, theirs)))
        ours, bytes_of_one = _contents(one, ours, rows, start_only=start_only)
        theirs, bytes_of_other = _contents(other, theirs, rows, start_only=start_only)
        read_bytes += max(bytes_of_one, bytes_of_other)
    return RenamedLeaves(pairs + _paired(one, ours, other, theirs), read_bytes)


def _types(tree: Operand, numbers: Iterable[int]) -> Contents:
    """Return the types of the leaves that are arrays and not empty."""
    types: Contents = {}
    for number in numbers:
        leaf = tree.index.leaves[number]
        if leaf.kind in ARRAY_KINDS and 0 not in leaf.shape:
            types[number] = (leaf.kind == "prng_key", leaf.prng_impl, leaf.dtype, leaf.shape)
    return types


def _with_digests(tree: Operand, types: Contents) -> Contents:
    """Return the types of the leaves that have digests, with these."""
    contents: Contents = {}
    for number, type_ in types.items():
        digests = contents_by_digest(tree, number)
        if digests is not None:
            contents[number] = (type_, digests)
    return contents


def _common(ours: Contents, theirs: Contents) -> tuple[Contents, Contents]:
    """Return the leaves whose contents are in both trees."""
    both = set(ours.values()) & set(theirs.values())
    first, second = (
        {number: contents for number, contents in some.items() if contents in both}
        for some in (ours, theirs)
    )
    return first, second


def _paired(
    one: Operand, ours: Contents, other: Operand, theirs: Contents
) -> list[tuple[int, int]]:
    def unpaired(tree: Operand, contents: Contents) -> Iterator[UnpairedLeaf]:
        for number, value in contents.items():
            leaf = tree.index.leaves[number]
            yield UnpairedLeaf(number, leaf.key_path, math.prod(leaf.shape), value)

    return pair_renamed(unpaired(one, ours), unpaired(other, theirs))


def _chunk_rows(trees: Iterable[tuple[Operand, Contents]]) -> dict[Hashable, int]:
    """Return for each of the contents the most rows of a chunk of such a leaf; 1 without chunks.

    All leaves of equal contents are cut alike, so that their parts have equal digests.
    """
    rows: dict[Hashable, int] = {}
    for tree, contents in trees:
        for number, value in contents.items():
            rows[value] = max(rows.get(value, 1), chunk_rows(tree.pieces(number)))
    return rows


def _contents(
    tree: Operand, contents: Contents, rows: Mapping[Hashable, int], *, start_only: bool
) -> tuple[Contents, int]:
    """Read leaves; add the digests of their parts to the contents, and return the bytes read."""
    parts: list[Part] = []
    for number, value in contents.items():
        leaf = tree.index.leaves[number]
        item = dtypes.itemsize(leaf.dtype)
        cut = partial(split_array, leaf.shape, item_bytes=item, rows=rows[value])
        boxes = [next(cut(limit_bytes=_START_BYTES))]
        if not start_only:
            boxes = [] if boxes == [whole_box(leaf.shape)] else list(cut(limit_bytes=_PART_BYTES))
        parts += [Part(number, box, element_count(box) * item) for box in boxes]
    digests: dict[int, list[bytes]] = {number: [] for number in contents}
    for part, digest in map_parts(_digest, parts, tree):
        digests[part.number].append(digest)
    read: Contents = {n: (value, tuple(digests[n])) for n, value in contents.items()}
    return read, sum([part.size_bytes for part in parts])


def _digest(_: Box, array: Array) -> bytes:
    return digest_of(flat_native(array).view(np.uint8).data)
