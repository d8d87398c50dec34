"""Leaves that are in both of two trees, but at different key paths."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.api.compare_arrays import flat_native
from cordwood.api.diff_operands import Array, Operand
from cordwood.api.unequal_parts import chunk_rows, contents_by_digest
from cordwood.encoding.digests import digest_of
from cordwood.index import ARRAY_KINDS, Box
from cordwood.io.threads import map_in_threads
from cordwood.plan.pair_renamed import UnpairedLeaf, pair_renamed
from cordwood.plan.split_arrays import group_parts, split_array
from cordwood.sharding.boxes import element_count, whole_box

Contents: TypeAlias = dict[int, Hashable]  # of leaves, by position; equal for equal leaves

_START_BYTES = 64 << 10  # of a leaf, read first
_PART_BYTES = 4 << 20
_GROUP_BYTES = 32 << 20  # of parts, read at a time


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


class _Part(NamedTuple):
    """A box of a leaf to read."""

    number: int
    box: Box
    size_bytes: int


def _contents(
    tree: Operand, contents: Contents, rows: Mapping[Hashable, int], *, start_only: bool
) -> tuple[Contents, int]:
    """Read leaves; add the digests of their parts to the contents, and return the bytes read."""
    parts: list[_Part] = []
    for number, value in contents.items():
        leaf = tree.index.leaves[number]
        item = dtypes.itemsize(leaf.dtype)
        cut = partial(split_array, leaf.shape, item_bytes=item, rows=rows[value])
        boxes = [next(cut(limit_bytes=_START_BYTES))]
        if not start_only:
            boxes = [] if boxes == [whole_box(leaf.shape)] else list(cut(limit_bytes=_PART_BYTES))
        parts += [_Part(number, box, element_count(box) * item) for box in boxes]
    digests: dict[int, list[bytes]] = {number: [] for number in contents}
    for group in group_parts(parts, lambda part: part.size_bytes, limit_bytes=_GROUP_BYTES):
        arrays = tree.read([(part.number, part.box) for part in group])
        for part, digest in zip(
            group, map_in_threads(_digest, [(array,) for array in arrays]), strict=True
        ):
            digests[part.number].append(digest)
    read: Contents = {n: (value, tuple(digests[n])) for n, value in contents.items()}
    return read, sum([part.size_bytes for part in parts])


def _digest(array: Array) -> bytes:
    return digest_of(flat_native(array).view(np.uint8).data)
