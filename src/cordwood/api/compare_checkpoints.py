"""Comparison of two checkpoints or trees, with the state of every leaf."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.api.array_change import (
    NO_CHANGE,
    VALUE_CHANGE,
    ArrayChange,
    combine_changes,
    measure_change,
)
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.diff_operands import CheckpointOperand, Operand, TreeOperand
from cordwood.api.diff_result import Diff, LeafDiff
from cordwood.api.renamed_leaves import renamed_leaves
from cordwood.api.sample_parts import Part, sample_parts
from cordwood.api.unequal_parts import compare_digests, unequal_boxes
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Encoded, Index, Leaf, Naming
from cordwood.io.pause_python_gc import gc_paused
from cordwood.io.progress import ProgressOption, Report, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.threads import map_in_threads
from cordwood.keypath import path_label
from cordwood.loading.match_containers import Container, containers_by_name
from cordwood.plan.leaf_text import leaf_text
from cordwood.plan.pair_leaves import Pairs, pair_leaves
from cordwood.plan.path_patterns import Select, match_patterns, path_name
from cordwood.plan.split_arrays import group_parts
from cordwood.sharding.boxes import element_count

Values: TypeAlias = bool | Literal["digests"]
State: TypeAlias = Literal[
    "added",  # only in b
    "removed",  # only in a
    "renamed",  # equal bytes at another key path
    "reshaped",  # another shape
    "recast",  # another dtype, kind or weak type
    "changed",  # other values; or other bytes, by their digests
    "equal",  # equal values, which were read
    "identical",  # equal by digest, not read
    "unread",  # not known: the values were not read, or not all of them have digests
]

_STATES: Mapping[str, State] = {"equal": "identical", "unequal": "changed", "unknown": "unread"}
_GROUP_BYTES = 32 << 20  # of parts, read at a time


class ComparedPair(NamedTuple):
    """A leaf of a, the leaf of b that belongs to it, and the result of comparing them."""

    i: int | None  # position in the index of a; None for an added leaf
    j: int | None  # position in the index of b; None for a removed leaf
    state: State
    difference: LeafDiff | None  # None if no difference is known
    change: ArrayChange | None = None  # None if no elements were read


class Comparison(NamedTuple):
    """The result of comparing two checkpoints or trees."""

    diff: Diff
    pairs: tuple[ComparedPair, ...]  # all leaves: those of a in their order, then the added ones
    equal_by_digest: frozenset[int]  # positions in the index of a
    incomplete: frozenset[int]  # the same, of leaves of which only a sample was read, or nothing


def compare_checkpoints(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = False,
    values: Values = True,
    sample_bytes: int | None = None,
    progress: ProgressOption = None,
) -> Comparison:
    """Compare two checkpoints or trees; other arguments and errors are those of `diff`.

    If `rename` is None, positions are those in `Index.leaves` of a checkpoint. With
    `sample_bytes`, about so many bytes of each side are read; statistics of leaves that are larger
    are then those of the sample, and a leaf whose sample is equal has the state that its digests
    tell.
    """
    if not (values is True or values is False or values == "digests"):
        raise ValueError(f"values: expected True, False or 'digests', found {values!r:.80}")
    with ExitStack() as opened, gc_paused():
        one = _operand(a, rename, opened)
        other = _operand(b, None, opened)
        for side in (one, other):
            if side.index.naming == "positions":
                raise MismatchError(
                    f"{side.name} holds arrays without names: load it into a tree like the one "
                    "that was saved, and compare that"
                )
        report = opened.enter_context(progress_display(progress, "comparing"))
        comparing = _Comparing(one, other, strict=strict, values=values, sample_bytes=sample_bytes)
        return comparing.run(select, report)


def _operand(value: Any, rename: Mapping[str, str] | None, opened: ExitStack) -> Operand:
    if isinstance(value, str | os.PathLike):
        return CheckpointOperand(opened.enter_context(open_checkpoint(value)), rename)
    if isinstance(value, Checkpoint):
        return CheckpointOperand(value, rename)
    return TreeOperand(value, rename)


class _Comparing:
    """Two operands, and what is known about the pairs of their leaves."""

    def __init__(
        self,
        one: Operand,
        other: Operand,
        *,
        strict: bool,
        values: Values,
        sample_bytes: int | None,
    ) -> None:
        self.one = one
        self.other = other
        self.strict = strict
        self.values = values
        self.sample_bytes = sample_bytes
        self.incomplete: set[int] = set()  # leaves that were not read, or not all, for a sample
        self.changes: dict[int, ArrayChange] = {}  # of leaves that were read, by position in a
        self.states: dict[int, State] = {}  # of leaves that were not read, by position in a
        self.read_bytes = 0

    def run(self, select: Select | None, report: Report | None) -> Comparison:
        first, second = self.one.index, self.other.index
        pairs = self._pairs(select)
        types = {i: self._type_difference(i, j) for i, j in pairs.both}
        comparable = [
            (i, j)
            for i, j in pairs.both
            if (difference := types[i]) is None or difference.what in ("dtype", "weak_type")
        ]
        renamed = self._compare_values(comparable, pairs, report)
        of_first = [self._compared(i, j, types[i]) for i, j in pairs.both]
        of_first += [self._renamed(i, j) for i, j in renamed]
        paired = {i for i, _ in renamed}, {j for _, j in renamed}
        of_first += [
            ComparedPair(i, None, "removed", _only(first.leaves[i], "a"))
            for i in pairs.first_only
            if i not in paired[0]
        ]
        of_first.sort(key=lambda pair: -1 if pair.i is None else pair.i)
        added = [
            ComparedPair(None, j, "added", _only(second.leaves[j], "b"))
            for j in pairs.second_only
            if j not in paired[1]
        ]
        return self._result([*of_first, *added], containers=select is None)

    def _result(self, compared: Sequence[ComparedPair], *, containers: bool) -> Comparison:
        differences = [pair for pair in compared if pair.difference is not None]
        differences.sort(key=lambda pair: pair.state in ("removed", "added"))
        by_digest = [pair.i for pair in compared if pair.state == "identical"]
        diff = Diff(
            self.one.name,
            self.other.name,
            tuple([pair.difference for pair in differences if pair.difference is not None]),
            tuple(_containers(self.one.index, self.other.index)) if containers else (),
            len(compared) - len(differences),
            len(by_digest),
            self.read_bytes,
            self.values is not False,
        )
        return Comparison(
            diff,
            tuple(compared),
            frozenset([i for i in by_digest if i is not None]),
            frozenset(self.incomplete),
        )

    def _pairs(self, select: Select | None) -> Pairs:
        first, second = self.one.index, self.other.index
        paths = [leaf.key_path for leaf in first.leaves]
        others = [leaf.key_path for leaf in second.leaves]
        pairs = pair_leaves(paths, first.naming, others, second.naming)
        if select is None:
            return pairs
        taken = self._taken(select, [path_name(path, first.naming) for path in paths])
        others_taken = self._taken(select, [path_name(path, second.naming) for path in others])
        return Pairs(
            tuple([(i, j) for i, j in pairs.both if taken[i] or others_taken[j]]),
            tuple([i for i in pairs.first_only if taken[i]]),
            tuple([j for j in pairs.second_only if others_taken[j]]),
        )

    def _taken(self, select: Select, names: Sequence[str]) -> list[bool]:
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

    def _compared(self, i: int, j: int, types: LeafDiff | None) -> ComparedPair:
        """Return the result for a pair of leaves, whose values have been compared."""
        leaf = self.one.index.leaves[i]
        change = self.changes.get(i)
        size = change.size if change is not None and i in self.incomplete else None
        state: State
        if types is not None:
            if change is not None and leaf.kind in ARRAY_KINDS:
                types = change.described(types, leaf, size=size)
            return ComparedPair(
                i, j, "reshaped" if types.what == "shape" else "recast", types, change
            )
        if change is None or (size is not None and not change.differs):
            state = self.states.get(i, "unread")
            tells = self.values == "digests" or i in self.incomplete
            difference = self._undecided(i, state) if tells else None
            return ComparedPair(i, j, state, difference, change)
        if not change.differs:
            return ComparedPair(i, j, "equal", None, change)
        if leaf.kind in ARRAY_KINDS:
            what = leaf_text(leaf)
            blank = LeafDiff(self._label(i), "value", what, what)
            difference = change.described(blank, leaf, size=size)
        else:
            values = self.one.value(i), self.other.value(j)
            shown = [repr(value)[:80] for value in values]
            difference = LeafDiff(self._label(i), "value", shown[0], shown[1])
        return ComparedPair(i, j, "changed", difference, change)

    def _undecided(self, i: int, state: State) -> LeafDiff | None:
        if state == "identical":
            return None
        what = leaf_text(self.one.index.leaves[i])
        return LeafDiff(self._label(i), "bytes" if state == "changed" else "unread", what, what)

    def _label(self, i: int) -> str:
        return path_label(self.one.index.leaves[i].key_path)

    def _renamed(self, i: int, j: int) -> ComparedPair:
        a, b = self.one.index.leaves[i], self.other.index.leaves[j]
        difference = LeafDiff(
            path_label(b.key_path),
            "renamed",
            leaf_text(a),
            leaf_text(b),
            renamed_from=path_label(a.key_path),
        )
        return ComparedPair(i, j, "renamed", difference)

    def _compare_values(
        self, comparable: Sequence[tuple[int, int]], pairs: Pairs, report: Report | None
    ) -> list[tuple[int, int]]:
        """Compare the values of leaves; return the positions of renamed leaves."""
        if self.values is False:
            return []
        if self.values == "digests":
            comparable = [(i, j) for i, j in comparable if not self._is_settled_by_digests(i, j)]
        parts = list(self._parts(comparable))
        if self.sample_bytes is not None:
            parts, self.incomplete = sample_parts(parts, self.sample_bytes)
            for i, j in comparable:
                if i in self.incomplete:
                    self._is_settled_by_digests(i, j)
        total_bytes = 2 * sum([part.size_bytes for part in parts])
        with report_progress(total_bytes, report):
            for group in group_parts(parts, lambda part: part.size_bytes, limit_bytes=_GROUP_BYTES):
                self._compare_group(group)
            renamed = renamed_leaves(
                self.one,
                pairs.first_only,
                self.other,
                pairs.second_only,
                read=self.values is True and self.sample_bytes is None,
            )
        self.read_bytes += renamed.read_bytes
        return renamed.pairs

    def _is_settled_by_digests(self, i: int, j: int) -> bool:
        """Compare two leaves by their digests; False if neither of them is stored in pieces."""
        if self.one.pieces(i) is None and self.other.pieces(j) is None:
            return False
        self.states[i] = _STATES[compare_digests(self.one, i, self.other, j)]
        return True

    def _parts(self, pairs: Sequence[tuple[int, int]]) -> Iterator[Part]:
        """Yield the boxes of pairs of leaves to read; compare Python values at once."""
        for i, j in pairs:
            leaf = self.one.index.leaves[i]
            if leaf.kind not in ARRAY_KINDS:
                same = _same_value(self.one.value(i), self.other.value(j))
                self.changes[i] = NO_CHANGE if same else VALUE_CHANGE
                continue
            other = self.other.index.leaves[j]
            item = max(dtypes.itemsize(leaf.dtype), dtypes.itemsize(other.dtype))
            boxes = list(unequal_boxes(self.one, i, self.other, j))
            if not boxes:
                self.states[i] = "identical"
            encoded = [
                leaf is not None and isinstance(leaf.storage, Encoded)
                for leaf in (self.one.pieces(i), self.other.pieces(j))
            ]
            for box in boxes:
                yield Part(i, j, box, element_count(box) * item, divisible=not any(encoded))

    def _compare_group(self, group: Sequence[Part]) -> None:
        ours = self.one.read([(part.i, part.box) for part in group])
        theirs = self.other.read([(part.j, part.box) for part in group])
        changes = map_in_threads(measure_change, list(zip(ours, theirs, strict=True)))
        for part, change in zip(group, changes, strict=True):  # in order: sums are reproducible
            self.changes[part.i] = combine_changes(self.changes.get(part.i, NO_CHANGE), change)
            self.read_bytes += part.size_bytes


def _containers(first: Index, second: Index) -> list[str]:
    """Return a line for each container of different kinds, and each empty one on one side only."""
    namings: set[Naming] = {first.naming, second.naming}
    if namings & {"dotted", "slashed"}:
        return []  # such formats have names, but no containers
    order: list[Naming] = ["keys", "strings", "exact"]
    common = min(namings, key=order.index)
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


def _same_value(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))
