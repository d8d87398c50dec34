"""Leaves that were renamed: equal contents at another key path.

They are recognised by their digests. Where these are not comparable, their elements are digested.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.comparing.array_change import flat_native
from cordwood.comparing.equal_parts import PART_BYTES, contents_by_digest
from cordwood.comparing.operands import Operand, map_parts
from cordwood.encoding.digests import digest_of
from cordwood.index import ARRAY_KINDS
from cordwood.keypath import DictKey, KeyPath
from cordwood.plan.split_arrays import Part, chunk_rows, split_array
from cordwood.sharding.boxes import element_count, whole_box

_START_BYTES = 64 << 10  # of a leaf that may have been renamed, read first

_FEW_ELEMENTS = 16
_SEPARATOR = re.compile(r"[./]")

Contents: TypeAlias = dict[int, Hashable]  # of leaves, by position; equal for equal leaves


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
    first_leaves, second_leaves = _by_contents(first), _by_contents(second)
    return sorted(
        [
            pair
            for each in first_leaves.keys() & second_leaves
            for pair in _pairs(first_leaves[each], second_leaves[each])
        ]
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
    first_leaves = {leaf.number: _names(leaf.key_path) for leaf in first}
    second_leaves = {leaf.number: _names(leaf.key_path) for leaf in second}
    is_small = first[0].size < _FEW_ELEMENTS
    longest = min(max(map(len, first_leaves.values())), max(map(len, second_leaves.values())))
    for length in range(longest, 0, -1):
        unpaired = defaultdict(list)
        for number, names in reversed(second_leaves.items()):
            unpaired[names[-length:]].append(number)
        for number, names in list(first_leaves.items()):
            numbers = unpaired.get(names[-length:])
            if len(names) < length or not numbers or (is_small and names[-1].isdecimal()):
                continue
            other = numbers.pop()
            yield number, other
            del first_leaves[number], second_leaves[other]
    if not is_small and len(first_leaves) == len(second_leaves):
        yield from zip(first_leaves, second_leaves, strict=True)


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
    first_leaves, second_leaves = _common(_types(one, first_only), _types(other, second_only))
    pairs = _paired(
        one, _with_digests(one, first_leaves), other, _with_digests(other, second_leaves)
    )
    if not read:
        return pairs, 0
    for i, j in pairs:
        del first_leaves[i], second_leaves[j]
    read_bytes = 0
    for start_only in (True, False):
        first_leaves, second_leaves = _common(first_leaves, second_leaves)
        rows = _chunk_rows(((one, first_leaves), (other, second_leaves)))
        first_leaves, bytes_of_one = _contents(one, first_leaves, rows, start_only=start_only)
        second_leaves, bytes_of_other = _contents(other, second_leaves, rows, start_only=start_only)
        read_bytes += max(bytes_of_one, bytes_of_other)
    return pairs + _paired(one, first_leaves, other, second_leaves), read_bytes


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


def _common(first_leaves: Contents, second_leaves: Contents) -> tuple[Contents, Contents]:
    """Return the leaves whose contents are in both trees."""
    both = set(first_leaves.values()) & set(second_leaves.values())
    first, second = (
        {number: contents for number, contents in some.items() if contents in both}
        for some in (first_leaves, second_leaves)
    )
    return first, second


def _paired(
    one: Operand, first_leaves: Contents, other: Operand, second_leaves: Contents
) -> list[tuple[int, int]]:
    def unpaired(tree: Operand, contents: Contents) -> Iterator[UnpairedLeaf]:
        for number, value in contents.items():
            leaf = tree.index.leaves[number]
            yield UnpairedLeaf(number, leaf.key_path, math.prod(leaf.shape), value)

    return pair_renamed(unpaired(one, first_leaves), unpaired(other, second_leaves))


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
            boxes = [] if boxes == [whole_box(leaf.shape)] else list(cut(limit_bytes=PART_BYTES))
        parts += [Part(number, box, element_count(box) * item) for box in boxes]
    digests: dict[int, list[bytes]] = {number: [] for number in contents}
    for part, digest in map_parts(
        lambda _, array: digest_of(flat_native(array).view(np.uint8).data), parts, tree
    ):
        digests[part.number].append(digest)
    read: Contents = {n: (value, tuple(digests[n])) for n, value in contents.items()}
    return read, sum([part.size_bytes for part in parts])
