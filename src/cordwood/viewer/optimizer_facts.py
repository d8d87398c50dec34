"""Facts about the optimizer, computed from the changes of the leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import counted
from cordwood.viewer.layer_matrices import LayerMatrix
from cordwood.viewer.leaf_change import LeafChange, relative_l2
from cordwood.viewer.leaf_kinds import FIRST_MOMENTS, SECOND_MOMENTS, group_of


class OptimizerFact(NamedTuple):
    """A number of both checkpoints, or of the change.

    Attributes:
        name: the fact, such as "steps" or "second moments (nu)".
        a, b: the number in each checkpoint; None if it is missing or the fact has none.
        change: the relative change, or the difference of counts; None if it is missing.
        text: an explanation.
    """

    name: str
    a: float | None
    b: float | None
    change: float | None
    text: str


def optimizer_facts(
    changes: Sequence[LeafChange],
    counters: Mapping[KeyPath, tuple[int, int]],
    matrices: Sequence[LayerMatrix] = (),
) -> list[OptimizerFact]:
    """Return what can be said about the optimizer; facts that are missing are left out.

    Args:
        changes: the differences of all leaves.
        counters: the values of the leaves that count steps, in a and b.
        matrices: the matrices of the same leaves, for the layer whose update is the largest.
    """
    facts = _steps(counters)
    groups: dict[str, list[LeafChange]] = {}
    for change in changes:
        group = group_of(change.key_path) if change.is_weight else None
        groups.setdefault(group or "", []).append(change)
    for name, moments in (("first", FIRST_MOMENTS), ("second", SECOND_MOMENTS)):
        for group, members in groups.items():
            if group in moments:
                facts += _norms(f"{name} moments ({group})", members)
    return facts + _update(groups.get("params", []), _layer_updates(matrices, changes))


def _steps(counters: Mapping[KeyPath, tuple[int, int]]) -> list[OptimizerFact]:
    """Return the counters; those with equal values, as optax has them, are one fact."""
    paths: dict[tuple[int, int], list[KeyPath]] = {}
    for path, values in counters.items():
        paths.setdefault(values, []).append(path)
    facts = []
    for (a, b), (first, *others) in paths.items():
        more = f" and {counted(len(others), 'other counter')}" if others else ""
        facts.append(OptimizerFact("steps", a, b, b - a, format_path(first) + more))
    return facts


def _norms(name: str, changes: Sequence[LeafChange]) -> list[OptimizerFact]:
    """Return the norms of a moment before and after, of the leaves that were read."""
    read = [
        change for change in changes if change.before_l2 is not None and change.after_l2 is not None
    ]
    if not read:
        return []
    text = f"L2 norms of {counted(len(read), 'leaf', 'leaves')}"
    if len(read) < len(changes):
        text = f"L2 norms of {len(read)} of {len(changes)} leaves; the rest was not read"
    before = math.hypot(*[change.before_l2 or 0.0 for change in read])
    after = math.hypot(*[change.after_l2 or 0.0 for change in read])
    return [OptimizerFact(name, before, after, relative_l2(read), text)]


def _update(changes: Sequence[LeafChange], layers: Mapping[str, float]) -> list[OptimizerFact]:
    """Return the size of the change of the parameters relative to the parameters."""
    paired = [change for change in changes if change.state not in ("added", "removed")]
    ratio = relative_l2(paired)
    if ratio is None:
        return []
    text = "L2 norm of b - a of the parameters, relative to a"
    if layers:
        largest = max(layers, key=lambda layer: layers[layer])
        text += f"; largest in layer {largest}: {layers[largest]:.3g}"
    return [OptimizerFact("update to weight", None, None, ratio, text)]


def _layer_updates(
    matrices: Sequence[LayerMatrix], changes: Sequence[LeafChange]
) -> dict[str, float]:
    """Return the relative L2 norm of the change of each layer of the parameters."""
    updates = {}
    for matrix in [matrix for matrix in matrices if matrix.group == "params"]:
        columns = len(matrix.kinds)
        for row, layer in enumerate(matrix.layers):
            cells = matrix.leaves[row * columns : (row + 1) * columns]
            updates[layer] = relative_l2([changes[leaf] for leaves in cells for leaf in leaves])
    return {layer: ratio for layer, ratio in updates.items() if ratio is not None}
