"""The leaves of a combination that are not added up: integers, random keys, values of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from cordwood.combining.addends import WeightedTree
from cordwood.combining.plan_combination import CombinationPlan
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Box, Leaf
from cordwood.keypath import path_label
from cordwood.loading.stored_specs import read_boxes, stored_specs
from cordwood.message_text import first_names

Others: TypeAlias = Literal["equal", "first", "last"]

_MAX_SHOWN = 10


def tree_of_others(
    trees: Sequence[WeightedTree], plan: CombinationPlan, others: Others, *, where: str
) -> WeightedTree:
    """Return the checkpoint from which such leaves are taken.

    Args:
        trees: the checkpoints that are combined.
        plan: the plan of the combination.
        others: "equal": they have to be equal in all; "first" and "last": those of that one.
        where: the name of the combination, for errors.

    Raises MismatchError for leaves that are to be equal and differ; names them.
    """
    if others != "equal":
        return trees[0 if others == "first" else -1]
    differing = [number for number in plan.copied if _values_differ(trees, number)]
    boxes = [
        (number, box) for tile in plan.tiles for number, box in tile if not plan.totals[number]
    ]
    differing += [number for number, box in boxes if _boxes_differ(trees, number, box)]
    if differing:
        leaves = trees[0].leaves
        names = [path_label(leaves[number].key_path) for number in sorted({*differing})]
        raise MismatchError(
            f"{where}: only arrays of floating-point and complex numbers are added up, and others "
            f'have to be equal; these differ: {first_names(names, _MAX_SHOWN)}. others="last" '
            '(--others last) takes those of the last checkpoint, "first" those of the first, and '
            "select= (--select) leaves them out"
        )
    return trees[0]


def _values_differ(trees: Sequence[WeightedTree], number: int) -> bool:
    """Return True if a leaf that is no array has several values."""
    leaves = [tree.leaves[number] for tree in trees]
    if leaves[0].kind in ARRAY_KINDS:
        return False
    return len({_text(tree, leaf) for tree, leaf in zip(trees, leaves, strict=True)}) > 1


def _text(tree: WeightedTree, leaf: Leaf) -> str:
    (spec,) = stored_specs(tree.reader, [leaf])
    return repr(spec.value)  # NaN is equal to itself, and 1 is not 1.0


def _boxes_differ(trees: Sequence[WeightedTree], number: int, box: Box) -> bool:
    first, *others = (_bytes_of(tree, number, box) for tree in trees)
    return any(not np.array_equal(first, other) for other in others)


def _bytes_of(tree: WeightedTree, number: int, box: Box) -> np.ndarray:
    (array,) = read_boxes(tree.reader, tree.leaves, {number: [box]})
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
