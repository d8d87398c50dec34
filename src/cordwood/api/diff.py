"""diff: the differences of two checkpoints, or of a checkpoint and a tree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.compare_arrays import (
    NO_DIFFERENCE,
    ArrayDifference,
    combine_differences,
    compare_arrays,
)
from cordwood.api.diff_operands import CheckpointOperand, Operand, TreeOperand
from cordwood.api.diff_result import Diff, LeafDiff
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Box, Encoded, Index, Leaf, Piece, Pieces, Span
from cordwood.io.pause_python_gc import gc_paused
from cordwood.loading.match_containers import Container, containers_by_name, path_label
from cordwood.plan.equal_digests import have_equal_digests
from cordwood.plan.leaf_text import leaf_text
from cordwood.plan.pair_leaves import pair_leaves
from cordwood.plan.path_patterns import Select, match_patterns, path_name
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import element_count, shape_of, whole_box

_PART_BYTES = 4 << 20  # of an array, compared at a time
_GROUP_BYTES = 32 << 20  # of parts, read at a time


def diff(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = False,
    values: bool = True,
) -> Diff:
    """Compare two checkpoints, a checkpoint and a tree, or two trees, leaf by leaf.

    Leaves are paired by key path, in any two formats: where one format stores keys as strings, or
    joined, the keys of the other are compared in that form. Leaves with equal digests over blocks
    of equal size are equal and are not read. All others are read and compared a few MiB at a
    time: memory stays below about 300 MiB for checkpoints of any size. A leaf of a tree in memory
    that is sharded over devices is copied to the host whole.

    Args:
        a: a path, an open checkpoint (`cordwood.open` takes a prefix or a format), or a tree.
        b: the same for the other side.
        select: patterns of key paths, as in `load`: compare only those leaves.
        rename: new key paths for leaves of `a`, as in `load`, by which they are paired with `b`.
        strict: True also reports an array that is numpy's on one side and jax's on the other, and
            weak types that differ.
        values: False compares structure, shapes and dtypes only, and reads no elements.

    Returns:
        The differences; `str()` shows them, and `.equal` and `.to_json()` are for programs. NaN
        equals NaN. Elements that are equal in value but not in bits (-0.0 and 0.0) are counted
        separately.

    Raises:
        MismatchError: a pattern matches nothing, or one side has arrays without names.
        CorruptionError: stored bytes that were read do not match their digest.
        Exception: all errors of `cordwood.open`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.zeros(4, np.float32), "step": 7})
    >>> print(diff("example.safetensors", {"w": np.float32([0, 0, 1, 0]), "step": 7}))
    1 difference between a = example.safetensors and b = the tree; 1 leaf equal:
      w: float32[4]: 1 of 4 elements differ, max abs 1, max rel 1
    """
    with ExitStack() as opened, gc_paused():
        one = _side(a, rename, opened)
        other = _side(b, None, opened)
        for side in (one, other):
            if side.index.naming == "positions":
                raise MismatchError(
                    f"{side.name} holds arrays without names: load it into a tree like the one "
                    "that was saved, and compare that"
                )
        return _Comparison(one, other, strict=strict).run(select, values=values)


def _side(value: Any, rename: Mapping[str, str] | None, opened: ExitStack) -> Operand:
    if isinstance(value, str | os.PathLike):
        return CheckpointOperand(opened.enter_context(open_checkpoint(value)), rename)
    if isinstance(value, Checkpoint):
        return CheckpointOperand(value, rename)
    return TreeOperand(value, rename)


class _Part(NamedTuple):
    """A box of a pair of leaves to read and compare."""

    number: int  # of the leaf in the first operand
    other: int
    box: Box
    size_bytes: int


class _Comparison:
    """Two operands, and the results of comparing them."""

    def __init__(self, one: Operand, other: Operand, *, strict: bool) -> None:
        self.one = one
        self.other = other
        self.strict = strict
        self.differences: dict[int, ArrayDifference] = {}  # by the leaf of the first operand
        self.read_bytes = 0
        self.by_digest: set[int] = set()

    def run(self, select: Select | None, *, values: bool) -> Diff:
        first, second = self.one.index, self.other.index
        paths = [leaf.key_path for leaf in first.leaves]
        others = [leaf.key_path for leaf in second.leaves]
        pairs = pair_leaves(paths, first.naming, others, second.naming)
        taken = self._taken(select, [path_name(path, first.naming) for path in paths])
        others_taken = self._taken(select, [path_name(path, second.naming) for path in others])
        both = [(i, j) for i, j in pairs.both if taken[i] or others_taken[j]]
        differences: dict[int, LeafDiff] = {}
        to_compare = []
        for i, j in both:
            difference = self._type_difference(i, j)
            if difference is not None:
                differences[i] = difference
            if values and (difference is None or difference.what in ("dtype", "weak_type")):
                to_compare.append((i, j))
        self._compare_values(to_compare)
        for i, j in to_compare:
            compared = self.differences.get(i, NO_DIFFERENCE)
            if i in differences and i in self.differences:
                differences[i] = _with_values(differences[i], compared, first.leaves[i])
            elif compared.differing or compared.bits:
                differences[i] = self._values_of(i, j, compared)
        leaves = [differences[i] for i, _ in both if i in differences]
        leaves += [_only(first.leaves[i], "a") for i in pairs.first_only if taken[i]]
        leaves += [_only(second.leaves[j], "b") for j in pairs.second_only if others_taken[j]]
        equal = {i for i, _ in both} - set(differences)
        return Diff(
            self.one.name,
            self.other.name,
            tuple(leaves),
            tuple(_containers(first, second)) if select is None else (),
            len(equal),
            len(equal & self.by_digest),
            self.read_bytes,
        )

    def _taken(self, select: Select | None, names: Sequence[str]) -> list[bool]:
        if select is None:
            return [True] * len(names)
        sides = (self.one.index, self.other.index)
        all_names = [
            path_name(leaf.key_path, side.naming) for side in sides for leaf in side.leaves
        ]
        every = [*names, *all_names]  # a pattern may match leaves of the other side only
        where = f"{self.one.name} and {self.other.name}"
        return match_patterns(every, select, naming="strings", where=where)[: len(names)]

    def _type_difference(self, i: int, j: int) -> LeafDiff | None:
        """Return how two leaves differ in kind, shape or dtype; None if they do not."""
        a, b = self.one.index.leaves[i], self.other.index.leaves[j]
        name = path_label(a.key_path)
        arrays = a.kind in ARRAY_KINDS, b.kind in ARRAY_KINDS
        keys = "prng_key" in (a.kind, b.kind)
        other_kind = a.kind != b.kind and (keys or self.strict or not all(arrays))
        if other_kind or a.prng_impl != b.prng_impl:
            same = leaf_text(a) == leaf_text(b)
            shown = [
                f"{leaf.kind} {leaf_text(leaf)}" if same else leaf_text(leaf) for leaf in (a, b)
            ]
            return LeafDiff(name, "kind", shown[0], shown[1])
        if a.shape != b.shape and all(arrays):
            return LeafDiff(name, "shape", leaf_text(a), leaf_text(b))
        if all(arrays) and a.dtype != b.dtype:
            return LeafDiff(name, "dtype", leaf_text(a), leaf_text(b))
        if self.strict and a.weak_type != b.weak_type:
            shown = [("weak " if leaf.weak_type else "") + leaf_text(leaf) for leaf in (a, b)]
            return LeafDiff(name, "weak_type", shown[0], shown[1])
        return None

    def _values_of(self, i: int, j: int, compared: ArrayDifference) -> LeafDiff:
        leaf = self.one.index.leaves[i]
        name = path_label(leaf.key_path)
        if leaf.kind in ARRAY_KINDS:
            what = leaf_text(leaf)
            return _with_values(LeafDiff(name, "value", what, what), compared, leaf)
        values = self.one.value(i), self.other.value(j)
        return LeafDiff(name, "value", repr(values[0])[:80], repr(values[1])[:80])

    def _compare_values(self, pairs: Sequence[tuple[int, int]]) -> None:
        group: list[_Part] = []
        size = 0
        for part in self._parts(pairs):
            if group and size + part.size_bytes > _GROUP_BYTES:
                self._compare_group(group)
                group, size = [], 0
            group.append(part)
            size += part.size_bytes
        if group:
            self._compare_group(group)

    def _parts(self, pairs: Sequence[tuple[int, int]]) -> Iterator[_Part]:
        """Yield the boxes of pairs of leaves to read; compare Python values at once."""
        for i, j in pairs:
            leaf = self.one.index.leaves[i]
            if leaf.kind not in ARRAY_KINDS:
                same = _same_value(self.one.value(i), self.other.value(j))
                self.differences[i] = NO_DIFFERENCE if same else ArrayDifference(1)
                continue
            other = self.other.index.leaves[j]
            item = max(dtypes.itemsize(leaf.dtype), dtypes.itemsize(other.dtype))
            boxes = list(self._unequal(i, j))
            if not boxes:
                self.by_digest.add(i)
            for box in boxes:
                yield _Part(i, j, box, element_count(box) * item)

    def _unequal(self, i: int, j: int) -> Iterator[Box]:
        """Yield the boxes of a pair of leaves that are not equal by their digests."""
        a, b = self.one.pieces(i), self.other.pieces(j)
        leaf = self.one.index.leaves[i]
        item = dtypes.itemsize(leaf.dtype)
        if a is None or b is None or not _cut_alike(a, b):
            rows = _rows(a) or _rows(b)
            yield from split_array(
                leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows or 1
            )
            return
        assert isinstance(a.storage, Pieces | Encoded)
        assert isinstance(b.storage, Pieces | Encoded)
        raw = isinstance(a.storage, Pieces) and a.storage.encoding in ("raw", "swapped")
        for mine, theirs in zip(a.storage.pieces, b.storage.pieces, strict=True):
            around = mine.where if isinstance(mine.where, Box) else whole_box(leaf.shape)
            if self._same(mine, theirs, 0, mine.length):
                continue
            shape = shape_of(around)
            for part in split_array(
                shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=_rows(a) or 1
            ):
                start, stop = (item * n for n in element_range(part, shape))
                if not raw or not self._same(mine, theirs, start, stop - start):
                    yield _moved(part, around)

    def _same(self, mine: Piece, theirs: Piece, start: int, length: int) -> bool:
        return have_equal_digests(
            self.one.digests(mine.source),
            mine.offset + start,
            self.other.digests(theirs.source),
            theirs.offset + start,
            length,
        )

    def _compare_group(self, group: Sequence[_Part]) -> None:
        ours = self.one.read([(part.number, part.box) for part in group])
        theirs = self.other.read([(part.other, part.box) for part in group])
        for part, a, b in zip(group, ours, theirs, strict=True):
            difference = compare_arrays(a, b)
            self.differences[part.number] = combine_differences(
                self.differences.get(part.number, NO_DIFFERENCE), difference
            )
            self.read_bytes += part.size_bytes


def _cut_alike(a: Leaf, b: Leaf) -> bool:
    """Return True if two leaves have equal pieces, so that equal bytes are equal elements."""
    one, other = a.storage, b.storage
    if type(one) is not type(other) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if isinstance(one, Encoded) and isinstance(other, Encoded):
        if (one.chunk_shape, one.codec) != (other.chunk_shape, other.codec):
            return False
    elif isinstance(one, Pieces) and isinstance(other, Pieces):
        if one.encoding != other.encoding:
            return False
        spans = [piece for piece in one.pieces if isinstance(piece.where, Span)]
        if spans and len(one.pieces) > 1:
            return False
    else:
        return False
    pairs = zip(one.pieces, other.pieces, strict=False)
    return len(one.pieces) == len(other.pieces) and all(
        mine.where == theirs.where and mine.length == theirs.length for mine, theirs in pairs
    )


def _rows(leaf: Leaf | None) -> int:
    """Return the number of rows of a chunk that is decoded whole; 0 if there are no chunks."""
    if leaf is None or not isinstance(leaf.storage, Encoded) or not leaf.storage.chunk_shape:
        return 0
    return leaf.storage.chunk_shape[0]


def _moved(box: Box, around: Box) -> Box:
    """Return a box of a part of an array as a box of the array."""
    return Box(
        tuple(map(int.__add__, box.start, around.start)),
        tuple(map(int.__add__, box.stop, around.start)),
    )


def _containers(first: Index, second: Index) -> list[str]:
    """Return a line for each container of different kinds, and each empty one on one side only."""
    namings = {first.naming, second.naming}
    if namings & {"dotted", "slashed"}:
        return []  # such formats have names, but no containers
    common = min(namings, key=["keys", "strings", "exact"].index)
    first_nodes, second_nodes = (
        containers_by_name(index.structure, common) for index in (first, second)
    )
    lines = []
    for name, one in first_nodes.items():
        other = second_nodes.get(name)
        if other is None:
            if one.empty:
                lines.append(f"{path_label(one.path)}: {_shown(one)} only in a")
        elif one.kind != other.kind:
            lines.append(f"{path_label(one.path)}: {_shown(one)} | {_shown(other)}")
    lines += [
        f"{path_label(other.path)}: {_shown(other)} only in b"
        for name, other in second_nodes.items()
        if other.empty and name not in first_nodes
    ]
    return lines


def _shown(container: Container) -> str:
    bare = not container.empty or container.kind == "None" or container.kind.startswith("an ")
    return container.kind if bare else f"empty {container.kind}"


def _only(leaf: Leaf, side: str) -> LeafDiff:
    name = path_label(leaf.key_path)
    if side == "a":
        return LeafDiff(name, "only_a", a=leaf_text(leaf))
    return LeafDiff(name, "only_b", b=leaf_text(leaf))


def _with_values(leaf_diff: LeafDiff, compared: ArrayDifference, leaf: Leaf) -> LeafDiff:
    size = element_count(whole_box(leaf.shape))
    differing, bits, max_abs, max_rel = compared
    if not differing:
        return leaf_diff._replace(size=size, bits=bits)
    return leaf_diff._replace(
        size=size, differing=differing, bits=bits, max_abs=max_abs, max_rel=max_rel
    )


def _same_value(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))
