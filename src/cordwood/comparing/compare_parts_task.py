"""The task of a comparison: parts of leaves of two trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.comparing.array_change import ArrayChange, measure_change
from cordwood.comparing.operands import CheckpointOperand, map_parts
from cordwood.comparing.scaled_sums import ScaledSum
from cordwood.loading.tree_reference import TreeReference
from cordwood.plan.rename_paths import Rename
from cordwood.plan.split_arrays import Part
from cordwood.recipes.recipe import Recipe
from cordwood.threads.garbage_collector import gc_paused


class TreesToCompare(NamedTuple):
    """The two trees, for a worker; the other attributes are arguments of `diff`."""

    one: TreeReference
    other: TreeReference
    rename: Rename | None
    recipe: Recipe | None


class CompareParts(NamedTuple):
    """The comparison of parts of leaves.

    Attributes:
        trees: the trees.
        parts: the parts; those of one leaf are adjacent.
        partners: the positions of the leaves in the first tree, and of their partners.
    """

    trees: TreesToCompare
    parts: tuple[Part, ...]
    partners: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        return 2 * sum([part.size_bytes for part in self.parts])

    def run(self) -> list[ArrayChange]:
        """Return the change of each part."""
        first, second, rename, recipe = self.trees
        with first.open() as a, second.open() as b, gc_paused():
            other = CheckpointOperand(b)
            one = CheckpointOperand(a, rename, recipe, other.index)
            changes = map_parts(measure_parts, self.parts, one, other, dict(self.partners))
            return [change for _, change in changes]

    def to_json(self, result: list[ArrayChange]) -> list[Any]:
        return result


def measure_parts(_box: object, a: np.ndarray, b: np.ndarray) -> ArrayChange:
    """Return the change from a part of one leaf to the same part of another."""
    return measure_change(a, b)


def tasks_of_parts(
    trees: TreesToCompare, parts: Iterable[Part], partners: Mapping[int, int], *, task_bytes: int
) -> Iterator[CompareParts]:
    """Yield the tasks that compare parts of leaves, in their order.

    Args:
        trees: the trees.
        parts: the parts; those of one leaf are adjacent.
        partners: the positions of leaves of the second tree by those of the first.
        task_bytes: the size of a task, of each side.
    """
    group: list[Part] = []
    size = 0
    for part in parts:
        if group and size + part.size_bytes > task_bytes:
            yield _task(trees, group, partners)
            group, size = [], 0
        group.append(part)
        size += part.size_bytes
    if group:
        yield _task(trees, group, partners)


def _task(
    trees: TreesToCompare, parts: Sequence[Part], partners: Mapping[int, int]
) -> CompareParts:
    leaves = dict.fromkeys([part.number for part in parts])
    return CompareParts(trees, tuple(parts), tuple([(i, partners[i]) for i in leaves]))


def changes_from_json(rows: Iterable[Sequence[Any]]) -> list[ArrayChange]:
    """Return the result of a task as a journal has it."""
    return [ArrayChange(*[_field(value) for value in row]) for row in rows]


def _field(value: Any) -> Any:
    return ScaledSum(*value) if isinstance(value, list) else value
