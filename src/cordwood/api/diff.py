"""diff: the differences of two checkpoints, or of a checkpoint and a tree.

Two operands are opened, their leaves are paired by name, and each pair is compared: by its digests,
by the elements of the parts that these leave open, or by those of a sample. What is left over on
both sides may have been renamed.

One file: the result, which can be printed, and the comparison that makes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from cordwood import dtypes
from cordwood.api.array_change import (
    NO_CHANGE,
    VALUE_CHANGE,
    ArrayChange,
    combine_changes,
    cosine_of,
    has_numbers,
    measure_change,
    root_of_quotient,
    root_of_scaled,
)
from cordwood.api.checkpoint import Checkpoint, open_at
from cordwood.api.diff_operands import (
    CheckpointOperand,
    Operand,
    TreeOperand,
    map_parts,
    sample_parts,
)
from cordwood.api.equal_parts import (
    Pairs,
    compare_digests,
    pair_leaves,
    renamed_leaves,
    unequal_boxes,
)
from cordwood.api.pair_trees import TreePairs, pair_trees
from cordwood.errors import MismatchError
from cordwood.formats.stored_trees import stored_trees, tree_text
from cordwood.index import ARRAY_KINDS, Index, Leaf, Naming, leaf_text
from cordwood.io.progress import ProgressOption, Report, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.progress_of_parts import ProgressOfParts
from cordwood.keypath import path_label
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.loading.match_containers import Container, containers_by_name, kinds_differ
from cordwood.loading.match_names import match_name
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.message_text import counted, first_lines, first_names, printable
from cordwood.plan.keys_of_like import with_keys_of_like
from cordwood.plan.path_patterns import Rename, Select, match_patterns, path_name
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.plan.split_arrays import Part, chunks_of
from cordwood.public_names import document_fields
from cordwood.sharding.boxes import element_count, whole_box
from cordwood.storage.locations import Location, is_path, parse_location
from cordwood.threads.garbage_collector import gc_paused

Values: TypeAlias = bool | Literal["digests"]
What: TypeAlias = Literal[
    "only_a",
    "only_b",
    "kind",
    "shape",
    "dtype",
    "weak_type",
    "value",
    "renamed",
    "bytes",
    "unread",
]

_MAX_LINES = 50
_MAX_SKIPPED = 10


@document_fields
class LeafDiff(NamedTuple):
    """The difference of one leaf. As a string, one line.

    Attributes:
        key_path: the leaf; of a renamed leaf, its key path in b.
        what: "only_a", "only_b", "kind", "shape", "dtype", "weak_type", "value", or "renamed": the
            same elements are at another key path. With `values="digests"` also "bytes" (the stored
            bytes differ) and "unread" (the digests do not show if the leaves are equal).
        a, b: its type on that side, such as float32[4,8]; for Python values, the values.
        size: the number of elements that were compared; 0 if none were.
        differing: the number of elements that differ in value; NaN equals NaN.
        bits: the number of elements equal in value, but not in bits (-0.0, other NaN payloads).
        max_abs: the largest `|a - b|`; inf if one is NaN or infinite; None if nothing differs.
        max_rel: the largest `|a - b| / max(|a|, |b|)`; None if nothing differs.
        share: differing / size; None if no elements were compared.
        read_size: the number of elements that were read; the others are equal by their digests.
        l2: the L2 norm of b - a. NaN and infinite elements of a or b do not count in norms; None
            if there is no norm: for times, PRNG keys and Python values.
        relative_l2: l2 / (the L2 norm of a), over the elements that were read; inf if a is 0 there.
        cosine: the cosine similarity of a and b, over the elements that were read; None if one of
            them is 0 there.
        sign_flips: the number of elements that are above 0 on one side and below 0 on the other;
            of complex elements, those where this holds for the real or the imaginary part.
        new_nan: the number of elements that are NaN (or NaT) in b and not in a.
        new_inf: the number of elements that are infinite in b and not in a.
        renamed_from: the key path of a renamed leaf in a.
        prefix: the prefix of its tree, if the directory holds several; "" for the one without.
    """

    key_path: str
    what: What
    a: str = ""
    b: str = ""
    size: int = 0
    differing: int = 0
    bits: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    share: float | None = None
    read_size: int = 0
    l2: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    sign_flips: int = 0
    new_nan: int = 0
    new_inf: int = 0
    renamed_from: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        return printable(_in_tree(self.prefix, self._line()), keep="")

    def _line(self) -> str:
        if self.what in ("only_a", "only_b"):
            side = self.what[-1]
            return f"{self.key_path}: only in {side} ({self.a or self.b})"
        if self.what == "renamed":
            return f"{self.renamed_from} -> {self.key_path}: renamed ({self.b})"
        if self.what == "bytes":
            return f"{self.key_path}: {self.a}: the stored bytes differ"
        if self.what == "unread":
            return f"{self.key_path}: {self.a}: unread; it has no digests of its own to compare"
        what = self.what.replace("_", " ")
        if self.what == "value":
            text = f"{self.key_path}: {self.a}" if self.size else f"{self.key_path}:"
        else:
            text = f"{self.key_path}: {what}: {self.a} | {self.b}"
        if not self.size:
            return f"{text} {self.a} | {self.b}" if self.what == "value" else text
        return f"{text}: {self._values()}"

    def _values(self) -> str:
        if not self.differing and not self.bits:
            return "the values are equal"
        parts = []
        if self.differing:
            parts.append(f"{self.differing} of {counted(self.size, 'element')} differ")
            if self.max_abs is not None:
                parts.append(f"max abs {self.max_abs:.6g}")
            if self.max_rel is not None:
                parts.append(f"max rel {self.max_rel:.3g}")
            if self.relative_l2 and math.isfinite(self.relative_l2):
                parts.append(f"relative L2 {self.relative_l2:.3g}")
            if self.new_nan:
                parts.append(f"{self.new_nan} new NaN")
            if self.new_inf:
                parts.append(f"{self.new_inf} new Inf")
        if self.bits:
            parts.append(f"{self.bits} equal in value but not in bits")
        return ", ".join(parts)


def _in_tree(prefix: str, line: str) -> str:
    return f"[{prefix}] {line}" if prefix else line


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """The differences of two checkpoints or trees.

    As a string, a line for each, which begins with the tree in brackets if that has a prefix;
    `to_json()` gives plain values.

    Attributes:
        a, b: the paths that were compared, or "the tree".
        leaves: the leaves that differ.
        containers: lines for containers of different kinds, and empty ones on one side only.
        equal_leaves: the number of equal leaves.
        equal_by_digest: the number of those that were not read, because digests are equal.
        read_bytes: the number of bytes of elements that were compared, per side.
        with_values: False if only structure, shapes and dtypes were compared (`values=False`).
        trees: lines for trees that only one of two directories holds.
        prefixes: the prefixes of the trees that were compared; "" for a tree without one.
        skipped: what a or b also holds and was not compared, in words: other trees, where one was
            chosen or is in memory, and items of Orbax that are no trees.
    """

    a: str
    b: str
    leaves: tuple[LeafDiff, ...]
    containers: tuple[str, ...]
    equal_leaves: int
    equal_by_digest: int
    read_bytes: int
    with_values: bool = True
    trees: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    skipped: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if there is no difference in what was compared."""
        return not self.leaves and not self.containers and not self.trees

    @property
    def _how(self) -> str:
        """The words for what was compared, and what was not, or not by reading all values."""
        where = ""
        if len(self.prefixes) > 1:
            where = f" in {len(self.prefixes)} trees"
        elif self.prefixes[0]:
            where = f" in the tree {self.prefixes[0]!r}"
        if not self.with_values:
            where += " (values not compared)"
        elif self.equal_by_digest:
            where += f" ({self.equal_by_digest} by digest)"
        return where

    @property
    def _left_out(self) -> str:
        names = first_names(self.skipped, _MAX_SKIPPED)
        return f"; not compared: {names}" if self.skipped else ""

    def __str__(self) -> str:
        same = counted(self.equal_leaves, "leaf", "leaves")
        how = self._how
        if self.equal:
            return printable(f"{self.a} and {self.b} are equal: {same}{how}{self._left_out}")
        lines = [*self.trees, *map(str, self.leaves), *self.containers]
        count = counted(len(lines), "difference")
        head = f"{count} between a = {self.a} and b = {self.b}; {same} equal{how}{self._left_out}:"
        return printable(f"{head}\n{first_lines(lines, _MAX_LINES)}")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import differences_html

        equal = counted(self.equal_leaves, "leaf", "leaves")
        head, note = "equal", f"{self.a} and {self.b}: {equal}"
        if not self.equal:
            count = len(self.trees) + len(self.leaves) + len(self.containers)
            head = counted(count, "difference")
            note = f"between a = {self.a} and b = {self.b}; {equal} equal"
        note += self._how + self._left_out
        lines = [("", line) for line in self.trees[:_MAX_LINES]]
        lines += [(each.key_path, str(each)) for each in self.leaves[: _MAX_LINES - len(lines)]]
        lines += [("", line) for line in self.containers[: _MAX_LINES - len(lines)]]
        hidden = len(self.trees) + len(self.leaves) + len(self.containers) - len(lines)
        return differences_html(head, note, lines, hidden=hidden)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`; numbers that JSON lacks are strings ("inf")."""
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "leaves": [_plain(leaf) for leaf in self.leaves],
            "containers": list(self.containers),
            "equal_leaves": self.equal_leaves,
            "equal_by_digest": self.equal_by_digest,
            "read_bytes": self.read_bytes,
            "trees": list(self.trees),
            "prefixes": list(self.prefixes),
            "skipped": list(self.skipped),
        }


def _plain(leaf: LeafDiff) -> dict[str, object]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in leaf._asdict().items()
    }


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

# The states of leaves that differ, by `LeafDiff.what`; other words are the same.
_STATES: Mapping[str, State] = {
    "only_a": "removed",
    "only_b": "added",
    "shape": "reshaped",
    "kind": "recast",
    "dtype": "recast",
    "weak_type": "recast",
    "value": "changed",
    "bytes": "changed",
}


class ComparedPair(NamedTuple):
    """A leaf of a, the leaf of b that belongs to it, and the result of comparing them."""

    i: int | None  # position in the index of a; None for an added leaf
    j: int | None  # position in the index of b; None for a removed leaf
    result: What | State  # what differs; or why no difference is known
    difference: LeafDiff | None  # None if no difference is known
    change: ArrayChange | None = None  # None if no elements were read

    @property
    def state(self) -> State:
        """The state of the leaf in one word."""
        return _STATES.get(self.result) or cast("State", self.result)


class Comparison(NamedTuple):
    """The result of comparing two checkpoints or trees."""

    diff: Diff
    pairs: tuple[ComparedPair, ...]  # all leaves: those of a in their order, then the added ones
    # Positions in the index of a of leaves of which only a sample was read, or nothing.
    incomplete: frozenset[int]


def diff(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    prefix: str | None = None,
    strict: bool = False,
    values: Values = True,
    progress: ProgressOption = None,
) -> Diff:
    """Compare two checkpoints, a checkpoint and a tree, or two trees, leaf by leaf.

    Of two directories that hold several trees (trees of prefixes, the items of a step, an Orbax
    composite), all are compared: those with the same prefix, and each tree of one side only is a
    difference. One tree of a directory is compared if `prefix` names it, if the other side is one
    tree (in memory, or an open checkpoint), or with `select` and `rename`. Then it is the tree
    without a prefix, or the only one, and the result says what was not compared. Strings beside the
    trees (metadata, metrics, extras, states of iterators) are not compared.

    Leaves are paired by key path, in any two formats: where one format stores keys as strings, or
    joined, the keys of the other are compared in that form. Leaves with equal digests over blocks
    of equal size are equal and are not read. All others are read and compared a few MiB at a
    time, in several threads: memory stays below about 300 MiB for checkpoints of any size. A leaf
    of a tree in memory that is sharded over devices is copied to the host whole. The result does
    not depend on the threads: each call returns the same numbers.

    An array that only `a` has, and one of the same type and elements that only `b` has, count as
    one renamed leaf. They are recognised by their digests; where these do not show it, and in
    trees in memory, by the digest of their elements, of which at first only 64 KiB are read. Of
    several arrays with the same elements, such as biases that are all zero, those are paired whose
    key paths have the longest end in common, and the others in order if each side has equally
    many. Arrays of fewer than 16 elements are paired only if the last key is the same name; empty
    arrays and Python values never are. Nothing is renamed with `values=False`.

    Args:
        a: a path, an open checkpoint (`cordwood.open` takes a prefix or a format), or a tree.
        b: the same for the other side.
        select: patterns of key paths, as in `load`: compare only those leaves.
        rename: new key paths for leaves of `a`, as in `load`, by which they are paired with `b`.
        prefix: the tree to compare, of each path that is a directory of several.
        strict: True also reports an array that is numpy's on one side and jax's on the other, and
            weak types that differ.
        values: False compares structure, shapes and dtypes only, and reads no elements. "digests"
            compares the digests too, and still reads no elements: an array whose stored bytes
            differ is listed as "bytes", without statistics, and one that has no digests of its own
            to compare as "unread". Its values may be equal, but `.equal` is then False.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, whose exception ends the call.

    Returns:
        The differences; `str()` shows them, and `.equal` and `.to_json()` are for programs. NaN
        equals NaN. Elements that are equal in value but not in bits (-0.0 and 0.0) are counted
        separately.

    Raises:
        MismatchError: a pattern matches nothing, or one side has arrays without names.
        PrefixError: a side has no tree of that prefix; or several trees, of which none is in both.
        CorruptionError: stored bytes that were read do not match their digest.
        Exception: all errors of `cordwood.open`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.zeros(4, np.float32), "step": 7})
    >>> print(diff("example.safetensors", {"w": np.float32([0, 0, 1, 0]), "step": 7}))
    1 difference between a = example.safetensors and b = the tree; 1 leaf equal:
      w: float32[4]: 1 of 4 elements differ, max abs 1, max rel 1
    """
    a, b = [_located(each) for each in (a, b)]
    every = [stored_trees(each) if isinstance(each, Location) else None for each in (a, b)]
    all_trees = select is None and rename is None
    pairs = pair_trees(every[0], every[1], prefix=prefix, all_trees=all_trees)
    diffs = []
    with ExitStack() as opened:
        report = opened.enter_context(progress_display(progress, "comparing"))
        operands = {
            name: tuple(map(partial(_with_prefix, opened), (a, b), prefixes))
            for name, *prefixes in pairs.both
        }
        parts = None
        if report is not None:
            sizes = {name: sum(map(_size_to_read, sides)) for name, sides in operands.items()}
            parts = ProgressOfParts(report, sizes)
        for name, (one, other) in operands.items():
            comparison = compare_checkpoints(
                one,
                other,
                select=select,
                rename=rename,
                strict=strict,
                values=values,
                progress=None if parts is None else parts.begin(name),
            )
            diffs.append((name, comparison.diff))
    return _joined(diffs, pairs)


def _located(value: object) -> object:
    """Return an operand, a path as the location of the checkpoint that it means."""
    return locate_checkpoint(parse_location(value)) if is_path(value) else value


def _with_prefix(opened: ExitStack, value: object, prefix: str | None) -> object:
    """Return an operand, a path as the open tree of this prefix."""
    if not isinstance(value, Location):
        return value
    return opened.enter_context(open_at(value, prefix=prefix))


def _size_to_read(value: object) -> int:
    """Return the size of all elements of one tree of several, in bytes."""
    if not isinstance(value, Checkpoint):
        return 0
    arrays = [leaf for leaf in value.index.leaves if leaf.dtype]
    return sum([math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) for leaf in arrays])


def _joined(diffs: Sequence[tuple[str, Diff]], pairs: TreePairs) -> Diff:
    """Return the differences of several trees as one result."""
    _, first = diffs[0]
    return Diff(
        first.a,
        first.b,
        tuple([leaf._replace(prefix=name) for name, diff in diffs for leaf in diff.leaves]),
        tuple([_in_tree(name, line) for name, diff in diffs for line in diff.containers]),
        sum([diff.equal_leaves for _, diff in diffs]),
        sum([diff.equal_by_digest for _, diff in diffs]),
        sum([diff.read_bytes for _, diff in diffs]),
        first.with_values,
        (
            *[f"{tree_text(name)}: only in a" for name in pairs.only_a],
            *[f"{tree_text(name)}: only in b" for name in pairs.only_b],
        ),
        tuple([name for name, _ in diffs]),
        tuple(pairs.skipped),
    )


def compare_checkpoints(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    strict: bool = False,
    values: Values = True,
    sample_bytes: int | None = None,
    progress: ProgressOption = None,
) -> Comparison:
    """Compare two trees, of a location its default one; other arguments are those of `diff`.

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
        second = other.index
        if rename and {one.index.naming, second.naming} == {"exact"}:
            paths = [leaf.key_path for leaf in second.leaves]
            one.part = with_keys_of_like(one.part, second.structure, paths)
        report = opened.enter_context(progress_display(progress, "comparing"))
        comparing = _Comparing(one, other, strict=strict, values=values, sample_bytes=sample_bytes)
        return comparing.run(select, report)


def _operand(value: object, rename: Rename | None, opened: ExitStack) -> Operand:
    value = _with_prefix(opened, value, None)
    if isinstance(value, Checkpoint):
        return CheckpointOperand(value, rename)
    return TreeOperand(value, rename)


@dataclass
class _Comparing:
    """Two operands, and what is known about the pairs of their leaves."""

    one: Operand
    other: Operand
    _: KW_ONLY
    strict: bool
    values: Values
    sample_bytes: int | None
    incomplete: set[int] = field(default_factory=set)  # not read, or not all, for a sample
    # Of leaves by position in a: those that were read, and those that were not.
    changes: dict[int, ArrayChange] = field(default_factory=dict)
    by_digest: dict[int, What | State] = field(default_factory=dict)
    read_bytes: int = 0

    def run(self, select: Select | None, report: Report | None) -> Comparison:
        first, second = self.one.index.leaves, self.other.index.leaves
        pairs = self._pairs(select)
        for side, leaves in (
            (self.one, [first[i] for i, _ in pairs.both]),
            (self.other, [second[j] for _, j in pairs.both]),
        ):
            require_readable(leaves, side.index.naming, name=side.name, remedy="compare")
        types = {i: self._type_difference(first[i], second[j]) for i, j in pairs.both}
        comparable = {
            i: j
            for i, j in pairs.both
            if (difference := types[i]) is None or difference.what in ("dtype", "weak_type")
        }
        renamed = self._compare_values(comparable, pairs, report) if self.values else {}
        results = {i: self._compared(i, j, types[i]) for i, j in pairs.both}
        results |= {i: self._differing("only_a", i, None) for i in pairs.first_only}
        results |= {i: self._differing("renamed", i, j) for i, j in renamed.items()}
        compared = [results[i] for i in sorted(results)]
        added = set(pairs.second_only) - set(renamed.values())
        compared += [self._differing("only_b", None, j) for j in pairs.second_only if j in added]
        differences = [pair.difference for pair in compared if pair.difference is not None]
        differences.sort(key=lambda difference: difference.what in ("only_a", "only_b"))
        diff = Diff(
            self.one.name,
            self.other.name,
            tuple(differences),
            tuple(_containers(self.one.part, self.other.index)) if select is None else (),
            len(compared) - len(differences),
            sum([pair.result == "identical" for pair in compared]),
            self.read_bytes,
            self.values is not False,
        )
        return Comparison(diff, tuple(compared), frozenset(self.incomplete))

    def _pairs(self, select: Select | None) -> Pairs:
        first, second = self.one.index, self.other.index
        paths = [leaf.key_path for leaf in first.leaves]
        others = [leaf.key_path for leaf in second.leaves]
        pairs = pair_leaves(paths, first.naming, others, second.naming)
        if select is None:
            return pairs
        names = [path_name(path, first.naming) for path in paths]
        names += [path_name(path, second.naming) for path in others]
        # One match for both sides: a pattern may match leaves of one side only.
        where = f"{self.one.name} and {self.other.name}"
        matches = match_patterns(names, select, naming="strings", where=where)
        taken, others_taken = matches[: len(paths)], matches[len(paths) :]
        return Pairs(
            tuple([(i, j) for i, j in pairs.both if taken[i] or others_taken[j]]),
            tuple([i for i in pairs.first_only if taken[i]]),
            tuple([j for j in pairs.second_only if others_taken[j]]),
        )

    def _type_difference(self, a: Leaf, b: Leaf) -> LeafDiff | None:
        """Return how two leaves differ in kind, shape or dtype; None if they do not."""
        arrays = a.kind in ARRAY_KINDS, b.kind in ARRAY_KINDS
        keys = "prng_key" in (a.kind, b.kind)
        other_kind = a.kind != b.kind and (keys or self.strict or not all(arrays))
        if other_kind or a.prng_impl != b.prng_impl:
            difference = _leaf_diff("kind", a, b)
            if difference.a != difference.b:
                return difference
            return difference._replace(a=f"{a.kind} {difference.a}", b=f"{b.kind} {difference.b}")
        if a.shape != b.shape and all(arrays):
            return _leaf_diff("shape", a, b)
        if all(arrays) and a.dtype != b.dtype:
            return _leaf_diff("dtype", a, b)
        if self.strict and a.weak_type != b.weak_type:
            difference = _leaf_diff("weak_type", a, b)
            shown = [("weak " if leaf.weak_type else "") + leaf_text(leaf) for leaf in (a, b)]
            return difference._replace(a=shown[0], b=shown[1])
        return None

    def _compared(self, i: int, j: int, types: LeafDiff | None) -> ComparedPair:
        """Return the result for a pair of leaves, whose values have been compared."""
        leaf = self.one.index.leaves[i]
        change = self.changes.get(i)
        size = change.size if change is not None and i in self.incomplete else None
        if types is not None:
            if change is not None and leaf.kind in ARRAY_KINDS:
                types = with_statistics(types, change, leaf, size=size)
            return ComparedPair(i, j, types.what, types, change)
        if change is None or (size is not None and not change.differs):
            result = self.by_digest.get(i, "unread")
            tells = result != "identical" and (self.values == "digests" or i in self.incomplete)
            difference = self._differing(cast("What", result), i, j).difference if tells else None
            return ComparedPair(i, j, result, difference, change)
        if not change.differs:
            return ComparedPair(i, j, "equal", None, change)
        difference = _leaf_diff("value", leaf, leaf)
        if leaf.kind in ARRAY_KINDS:
            difference = with_statistics(difference, change, leaf, size=size)
        else:
            shown = [repr(value)[:80] for value in (self.one.value(i), self.other.value(j))]
            difference = difference._replace(a=shown[0], b=shown[1])
        return ComparedPair(i, j, "value", difference, change)

    def _differing(self, what: What, i: int | None, j: int | None) -> ComparedPair:
        """Return the result for leaves of which no elements were compared."""
        a = None if i is None else self.one.index.leaves[i]
        b = None if j is None else self.other.index.leaves[j]
        return ComparedPair(i, j, what, _leaf_diff(what, a, b))

    def _compare_values(
        self, comparable: Mapping[int, int], pairs: Pairs, report: Report | None
    ) -> dict[int, int]:
        """Compare the values of leaves; return the positions of renamed leaves in both trees."""
        if self.values == "digests":
            comparable = {i: j for i, j in comparable.items() if not self._is_settled(i, j)}
        parts = list(self._parts(comparable))
        if self.sample_bytes is not None:
            parts, self.incomplete = sample_parts(parts, self.sample_bytes)
            for i in self.incomplete:
                self._is_settled(i, comparable[i])
        with report_progress(2 * sum([part.size_bytes for part in parts]), report):
            # The changes arrive in order: sums are reproducible.
            for part, change in map_parts(
                lambda _, a, b: measure_change(a, b), parts, self.one, self.other, comparable
            ):
                self.changes[part.number] = combine_changes(
                    self.changes.get(part.number, NO_CHANGE), change
                )
                self.read_bytes += part.size_bytes
            renamed, read_bytes = renamed_leaves(
                self.one,
                pairs.first_only,
                self.other,
                pairs.second_only,
                read=self.values is True and self.sample_bytes is None,
            )
        self.read_bytes += read_bytes
        return dict(renamed)

    def _is_settled(self, i: int, j: int) -> bool:
        """Compare two leaves by their digests; False if neither of them is stored in pieces."""
        if self.one.pieces(i) is None and self.other.pieces(j) is None:
            return False
        self.by_digest[i] = compare_digests(self.one, i, self.other, j)
        return True

    def _parts(self, pairs: Mapping[int, int]) -> Iterator[Part]:
        """Yield the boxes of pairs of leaves to read; compare Python values at once."""
        for i, j in pairs.items():
            leaf, other = self.one.index.leaves[i], self.other.index.leaves[j]
            if leaf.kind not in ARRAY_KINDS:
                same = _same_value(self.one.value(i), self.other.value(j))
                self.changes[i] = NO_CHANGE if same else VALUE_CHANGE
                continue
            item = max(dtypes.itemsize(leaf.dtype), dtypes.itemsize(other.dtype))
            boxes = list(unequal_boxes(self.one, i, self.other, j))
            if not boxes:
                self.by_digest[i] = "identical"
            divisible = not chunks_of(self.one.pieces(i), self.other.pieces(j))
            for box in boxes:
                yield Part(i, box, element_count(box) * item, divisible)


def _leaf_diff(what: What, a: Leaf | None, b: Leaf | None) -> LeafDiff:
    """Return a difference with the types of both leaves; it is named like that of a if it can."""
    name = b if a is None or what == "renamed" else a
    return LeafDiff(
        "" if name is None else path_label(name.key_path),
        what,
        "" if a is None else leaf_text(a),
        "" if b is None else leaf_text(b),
        renamed_from=path_label(a.key_path) if a and what == "renamed" else "",
    )


def with_statistics(
    difference: LeafDiff, change: ArrayChange, leaf: Leaf, *, size: int | None = None
) -> LeafDiff:
    """Return a difference with the statistics of the change of a leaf.

    Args:
        difference: the other members.
        change: the change, of the elements that were read.
        leaf: the leaf of a.
        size: the number of elements that were compared. None: all of the leaf; those that were
            not read are equal by digest.
    """
    if size is None:
        size = element_count(whole_box(leaf.shape))
    if change.differing:
        difference = difference._replace(max_abs=change.max_abs, max_rel=change.max_rel)
    difference = difference._replace(
        size=size,
        differing=change.differing,
        bits=change.bits,
        share=change.differing / size if size else None,
        read_size=change.size,
        new_nan=change.new_nan,
    )
    if not has_numbers(leaf) or not change.size:
        return difference
    return difference._replace(
        l2=root_of_scaled(change.change_squares),
        relative_l2=root_of_quotient(change.change_squares, change.a_squares),
        cosine=cosine_of(change.products, change.a_squares, change.b_squares),
        sign_flips=change.sign_flips,
        new_inf=change.new_inf,
    )


def _containers(part: SelectedLeaves, second: Index) -> list[str]:
    """Return a line for each container of different kinds, and each empty one on one side only."""
    first = part.stored
    namings: set[Naming] = {first.naming, second.naming}
    if namings & {"dotted", "slashed"}:
        return []  # such formats have names, but no containers
    order: list[Naming] = ["keys", "strings", "exact"]
    common = min(namings, key=order.index)
    first_nodes, second_nodes = (
        containers_by_name(index.structure, common) for index in (first, second)
    )
    moved = {match_name(path, common) for path in part.moved}
    lines = []
    for name, one in first_nodes.items():
        other = second_nodes.get(name)
        if other is None:
            if one.empty:
                lines.append(f"{path_label(one.path)}: {_shown(one)} only in a")
        elif kinds_differ(one, other, is_moved=name in moved):
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


def _same_value(a: object, b: object) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))
