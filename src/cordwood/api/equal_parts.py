"""Equal leaves of two trees: pairs by name, parts that are equal by digest, and renamed leaves.

Where the digests of leaves that were renamed are not comparable, their elements are digested.

One file: a renamed leaf is recognised by the digests that also show equal parts, and then by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.api.array_change import flat_native
from cordwood.api.diff_operands import Operand, StoredRange, map_parts
from cordwood.encoding.digests import DIGEST_BYTES, digest_of
from cordwood.index import ARRAY_KINDS, Box, Encoded, Leaf, Naming, Piece, Pieces, Span
from cordwood.keypath import DictKey, KeyPath
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
_JOINED = ("dotted", "slashed")
_FEW_ELEMENTS = 16
_SEPARATOR = re.compile(r"[./]")

Contents: TypeAlias = dict[int, Hashable]  # of leaves, by position; equal for equal leaves


class Pairs(NamedTuple):
    """Positions of leaves in two trees."""

    both: tuple[tuple[int, int], ...]  # in the order of the first
    first_only: tuple[int, ...]
    second_only: tuple[int, ...]


def comparison_name(path: KeyPath, naming: Naming, other: Naming) -> Hashable:
    """Return the name of a leaf for comparison with the leaves of a tree of another naming.

    Keys become strings if one side has turned them into strings, and are joined if one side has
    joined them. So names that differ on one side may be equal in the comparison.
    """
    if naming == other == "exact":
        return path
    keys = tuple([str(key.value if isinstance(key, DictKey) else key) for key in path])
    if naming not in _JOINED and other not in _JOINED:
        return keys
    name = "/".join(keys)
    return name.replace("/", ".") if "dotted" in (naming, other) else name


def pair_leaves(
    paths: Sequence[KeyPath], naming: Naming, others: Sequence[KeyPath], other_naming: Naming
) -> Pairs:
    """Pair the leaves of two trees by name; if several have one name, the last one counts."""
    unpaired = {comparison_name(path, other_naming, naming): i for i, path in enumerate(others)}
    both = []
    first_only = []
    for i, path in enumerate(paths):
        other = unpaired.pop(comparison_name(path, naming, other_naming), None)
        if other is None:
            first_only.append(i)
        else:
            both.append((i, other))
    return Pairs(tuple(both), tuple(first_only), tuple(unpaired.values()))


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
            leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, chunk_shape=chunks_of(a, b)
        )
        return
    raw = isinstance(a.storage, Pieces) and a.storage.encoding in ("raw", "swapped")
    for mine, theirs in pieces:
        around = mine.where if isinstance(mine.where, Box) else whole_box(leaf.shape)
        ours, others = one.stored(mine), other.stored(theirs)
        if have_equal_digests(ours, others):
            continue
        shape = shape_of(around)
        rows = chunk_rows(a)
        for part in split_array(shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
            start, stop = (item * n for n in element_range(part, shape))
            length = stop - start
            if raw and have_equal_digests(ours.part(start, length), others.part(start, length)):
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
    pairs = [(one.stored(mine), other.stored(theirs)) for mine, theirs in pieces]
    if all(have_equal_digests(mine, theirs) for mine, theirs in pairs):
        return "identical"
    differ = any(have_unequal_digests(mine, theirs) for mine, theirs in pairs)
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


class UnpairedLeaf(NamedTuple):
    """An array leaf whose key path the other tree lacks."""

    number: int  # its position in its tree
    key_path: KeyPath
    size: int  # the number of elements
    contents: Hashable  # equal for leaves of equal type and elements


def pair_renamed(
    first: Iterable[UnpairedLeaf], second: Iterable[UnpairedLeaf]
) -> list[tuple[int, int]]:
    """Return the positions of leaves that were renamed, in the order of the first tree.

    Leaves of equal contents are paired by the ends of their key paths: first those with the longest
    end in common (`a/0/bias` and `b/0/bias`), then those with a shorter one. Those without a
    common end are paired in order, if each side has equally many: biases that are all zero, in
    layers that have new names. If one side has more, nothing tells which of them was renamed, and
    they are not paired. Leaves of fewer than 16 elements often have equal contents by chance. They
    are paired only by a common last key that is a name, not a position. Empty leaves are not
    paired.

    >>> a = [UnpairedLeaf(0, ("a", "kernel"), 99, "x"), UnpairedLeaf(1, ("a", "bias"), 99, "x")]
    >>> b = [UnpairedLeaf(5, ("b", "bias"), 99, "x"), UnpairedLeaf(6, ("b", "weight"), 99, "x")]
    >>> pair_renamed(a, b)
    [(0, 6), (1, 5)]
    """
    ours, theirs = _by_contents(first), _by_contents(second)
    return sorted(
        [pair for each in ours.keys() & theirs for pair in _pairs(ours[each], theirs[each])]
    )


def _by_contents(leaves: Iterable[UnpairedLeaf]) -> dict[Hashable, list[UnpairedLeaf]]:
    groups = defaultdict(list)
    for leaf in leaves:
        if leaf.size:
            groups[leaf.contents].append(leaf)
    return groups


def _pairs(
    first: Sequence[UnpairedLeaf], second: Sequence[UnpairedLeaf]
) -> Iterator[tuple[int, int]]:
    ours = {leaf.number: _names(leaf.key_path) for leaf in first}
    theirs = {leaf.number: _names(leaf.key_path) for leaf in second}
    is_small = first[0].size < _FEW_ELEMENTS
    longest = min(max(map(len, ours.values())), max(map(len, theirs.values())))
    for length in range(longest, 0, -1):
        unpaired = defaultdict(list)
        for number, names in reversed(theirs.items()):
            unpaired[names[-length:]].append(number)
        for number, names in list(ours.items()):
            numbers = unpaired.get(names[-length:])
            if len(names) < length or not numbers or (is_small and names[-1].isdecimal()):
                continue
            other = numbers.pop()
            yield number, other
            del ours[number], theirs[other]
    if not is_small and len(ours) == len(theirs):
        yield from zip(ours, theirs, strict=True)


def _names(path: KeyPath) -> tuple[str, ...]:
    """Return the keys of a path as strings; keys that a format has joined are split."""
    text = "/".join([str(key.value if isinstance(key, DictKey) else key) for key in path])
    return tuple(_SEPARATOR.split(text))


def renamed_leaves(
    one: Operand,
    first_only: Sequence[int],
    other: Operand,
    second_only: Sequence[int],
    *,
    read: bool,
) -> tuple[list[tuple[int, int]], int]:
    """Return the positions of array leaves of equal type and elements, and the bytes read per side.

    `pair_renamed` says which are paired.

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
        return pairs, 0
    for i, j in pairs:
        del ours[i], theirs[j]
    read_bytes = 0
    for start_only in (True, False):
        ours, theirs = _common(ours, theirs)
        rows = _chunk_rows(((one, ours), (other, theirs)))
        ours, bytes_of_one = _contents(one, ours, rows, start_only=start_only)
        theirs, bytes_of_other = _contents(other, theirs, rows, start_only=start_only)
        read_bytes += max(bytes_of_one, bytes_of_other)
    return pairs + _paired(one, ours, other, theirs), read_bytes


def _types(tree: Operand, numbers: Iterable[int]) -> Contents:
    """Return the types of the leaves that are arrays and not empty."""
    leaves = [(number, tree.index.leaves[number]) for number in numbers]
    return {
        number: (leaf.kind == "prng_key", leaf.prng_impl, leaf.dtype, leaf.shape)
        for number, leaf in leaves
        if leaf.kind in ARRAY_KINDS and 0 not in leaf.shape
    }


def _with_digests(tree: Operand, types: Contents) -> Contents:
    """Return the types of the leaves that have digests, with these."""
    return {
        number: (type_, digests)
        for number, type_ in types.items()
        if (digests := contents_by_digest(tree, number)) is not None
    }


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
    for part, digest in map_parts(
        lambda _, array: digest_of(flat_native(array).view(np.uint8).data), parts, tree
    ):
        digests[part.number].append(digest)
    read: Contents = {n: (value, tuple(digests[n])) for n, value in contents.items()}
    return read, sum([part.size_bytes for part in parts])
