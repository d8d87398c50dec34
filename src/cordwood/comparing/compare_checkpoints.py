"""The comparison of two trees, leaf by leaf.

Two operands are opened, their leaves are paired by name, and each pair is compared: by its digests,
by the elements of the parts that these leave open, or by those of a sample. What is left over on
both sides may have been renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from cordwood import dtypes
from cordwood.comparing.array_change import (
    NO_CHANGE,
    VALUE_CHANGE,
    ArrayChange,
    combine_changes,
)
from cordwood.comparing.compare_containers import container_differences
from cordwood.comparing.compare_in_tasks import ComparisonWork
from cordwood.comparing.compare_parts_task import measure_parts
from cordwood.comparing.differences import Diff
from cordwood.comparing.equal_parts import compare_digests, unequal_boxes
from cordwood.comparing.leaf_diff import LeafDiff, What, leaf_diff, with_statistics
from cordwood.comparing.operands import CheckpointOperand, Operand, TreeOperand, map_parts
from cordwood.comparing.pair_leaves import Pairs, pair_leaves
from cordwood.comparing.renamed_leaves import renamed_leaves
from cordwood.comparing.sample_parts import sample_parts
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Index, Leaf, leaf_text
from cordwood.io.progress import ProgressOption, Report, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.message_text import counted
from cordwood.plan.keys_of_like import with_keys_of_like
from cordwood.plan.path_patterns import Select, match_patterns, path_name
from cordwood.plan.rename_paths import Rename
from cordwood.plan.split_arrays import Part, chunks_of
from cordwood.recipes.recipe import Recipe
from cordwood.sharding.boxes import element_count
from cordwood.storage.locations import Location
from cordwood.threads.garbage_collector import gc_paused

ValuesOption: TypeAlias = bool | Literal["digests"]

LeafState: TypeAlias = Literal[
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
_STATES: Mapping[str, LeafState] = {
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
    result: What | LeafState  # what differs; or why no difference is known
    difference: LeafDiff | None  # None if no difference is known
    change: ArrayChange | None = None  # None if no elements were read

    @property
    def state(self) -> LeafState:
        """The state of the leaf in one word."""
        return _STATES.get(self.result) or cast("LeafState", self.result)


class TreeComparison(NamedTuple):
    """The result of comparing two checkpoints or trees."""

    diff: Diff
    pairs: tuple[ComparedPair, ...]  # all leaves: those of a in their order, then the added ones
    # Positions in the index of a of leaves of which only a sample was read, or nothing.
    incomplete: frozenset[int]


def open_operand(opened: ExitStack, value: object, prefix: str | None) -> object:
    """Return an operand, a path as the open tree of this prefix."""
    if not isinstance(value, Location):
        return value
    return opened.enter_context(open_at(value, prefix=prefix))


def compare_checkpoints(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    recipe: Recipe | None = None,
    strict: bool = False,
    values: ValuesOption = True,
    sample_bytes: int | None = None,
    progress: ProgressOption = None,
    work: ComparisonWork | None = None,
) -> TreeComparison:
    """Compare two trees, of a location the default one; other arguments are those of `diff`.

    If `rename` and `recipe` are None, positions are those in `Index.leaves` of a checkpoint. With
    `sample_bytes`, about so many bytes of each side are read; statistics of leaves that are larger
    are then those of the sample, and a leaf whose sample is equal has the state that its digests
    tell. With `work`, the elements are compared in tasks; those of a part alone may be.
    """
    if not (values is True or values is False or values == "digests"):
        raise ValueError(f"values: expected True, False or 'digests', found {values!r:.80}")
    with ExitStack() as opened, gc_paused():
        a, b = [open_operand(opened, value, None) for value in (a, b)]
        other = _operand(b)
        one = _operand(a, rename, recipe, other.index)
        for side in (one, other):
            if side.index.naming == "positions":
                raise MismatchError(
                    f"{side.name} holds arrays without names: load it into a tree like the one "
                    "that was saved, and compare that"
                )
        second = other.index
        if (rename or recipe is not None) and {one.index.naming, second.naming} == {"exact"}:
            paths = [leaf.key_path for leaf in second.leaves]
            one.part = with_keys_of_like(one.part, second.structure, paths)
        report = opened.enter_context(progress_display(progress, "comparing"))
        comparing = _Comparing(
            one, other, strict=strict, values=values, sample_bytes=sample_bytes, work=work
        )
        return comparing.run(select, report)


def _operand(
    value: object,
    rename: Rename | None = None,
    recipe: Recipe | None = None,
    like: Index | None = None,
) -> Operand:
    if isinstance(value, Checkpoint):
        refuse_delta(value._reader)
        return CheckpointOperand(value, rename, recipe, like)
    return TreeOperand(value, rename, recipe, like)


@dataclass
class _Comparing:
    """Two operands, and what is known about the pairs of their leaves."""

    one: Operand
    other: Operand
    _: KW_ONLY
    strict: bool
    values: ValuesOption
    sample_bytes: int | None
    work: ComparisonWork | None
    elsewhere: set[int] = field(default_factory=set)  # with elements that are of other tasks
    incomplete: set[int] = field(default_factory=set)  # not read, or not all, for a sample
    # Of leaves by position in a: those that were read, and those that were not.
    changes: dict[int, ArrayChange] = field(default_factory=dict)
    by_digest: dict[int, What | LeafState] = field(default_factory=dict)
    read_bytes: int = 0

    def run(self, select: Select | None, report: Report | None) -> TreeComparison:
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
        skipped = [each for each in compared if each.i in self.elsewhere and not each.difference]
        elsewhere = counted(len(self.elsewhere), "leaf", "leaves")
        diff = Diff(
            self.one.name,
            self.other.name,
            tuple(differences),
            tuple(container_differences(self.one.part, self.other.index)) if select is None else (),
            len(compared) - len(differences) - len(skipped),
            sum([pair.result == "identical" for pair in compared]),
            self.read_bytes,
            self.values is not False,
            skipped=(f"elements of other parts, of {elsewhere}",) if self.elsewhere else (),
        )
        return TreeComparison(diff, tuple(compared), frozenset(self.incomplete))

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
        selected, others_selected = matches[: len(paths)], matches[len(paths) :]
        return Pairs(
            tuple([(i, j) for i, j in pairs.both if selected[i] or others_selected[j]]),
            tuple([i for i in pairs.first_only if selected[i]]),
            tuple([j for j in pairs.second_only if others_selected[j]]),
        )

    def _type_difference(self, a: Leaf, b: Leaf) -> LeafDiff | None:
        """Return how two leaves differ in kind, shape or dtype; None if they do not."""
        arrays = a.kind in ARRAY_KINDS, b.kind in ARRAY_KINDS
        keys = "prng_key" in (a.kind, b.kind)
        other_kind = a.kind != b.kind and (keys or self.strict or not all(arrays))
        if other_kind or a.prng_impl != b.prng_impl:
            difference = leaf_diff("kind", a, b)
            if difference.a != difference.b:
                return difference
            return difference._replace(a=f"{a.kind} {difference.a}", b=f"{b.kind} {difference.b}")
        if a.shape != b.shape and all(arrays):
            return leaf_diff("shape", a, b)
        if all(arrays) and a.dtype != b.dtype:
            return leaf_diff("dtype", a, b)
        if self.strict and a.weak_type != b.weak_type:
            difference = leaf_diff("weak_type", a, b)
            shown = [("weak " if leaf.weak_type else "") + leaf_text(leaf) for leaf in (a, b)]
            return difference._replace(a=shown[0], b=shown[1])
        return None

    def _compared(self, i: int, j: int, types: LeafDiff | None) -> ComparedPair:
        """Return the result for a pair of leaves, whose values have been compared."""
        leaf = self.one.index.leaves[i]
        change = self.changes.get(i)
        is_incomplete = i in self.incomplete or i in self.elsewhere
        size = change.size if change is not None and is_incomplete else None
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
        difference = leaf_diff("value", leaf, leaf)
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
        return ComparedPair(i, j, what, leaf_diff(what, a, b))

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
        size_bytes = 2 * sum([part.size_bytes for part in parts])
        changes: Iterable[tuple[Part, ArrayChange]]
        is_part = False
        if self.work is None:
            changes = map_parts(measure_parts, parts, self.one, self.other, comparable)
        else:
            tasks = self.work.tasks(parts, comparable)
            changes = self.work.changes(tasks)
            size_bytes = self.work.run.size_bytes(tasks)
            positions = self.work.run.positions(tasks)
            is_part = len(positions) < len(tasks)
            others = [*tasks[: positions.start], *tasks[positions.stop :]]
            self.elsewhere = {part.number for task in others for part in task.parts}
        with report_progress(size_bytes, report):
            # The changes arrive in order: sums are reproducible.
            for part, change in changes:
                self.changes[part.number] = combine_changes(
                    self.changes.get(part.number, NO_CHANGE), change
                )
                self.read_bytes += part.size_bytes
            renamed, read_bytes = renamed_leaves(
                self.one,
                pairs.first_only,
                self.other,
                pairs.second_only,
                read=self.values is True and self.sample_bytes is None and not is_part,
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


def _same_value(a: object, b: object) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))
