"""Matrices of the change of a model: a row for each layer, a column for each kind of weight. Pure.

There is one matrix for the parameters, and one for each tree like them: the moments of an
optimizer, averages of the parameters. Facts about the optimizer are computed from the same leaves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from typing import NamedTuple

from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import counted
from cordwood.viewer.leaf_kinds import (
    FIRST_MOMENTS,
    SECOND_MOMENTS,
    LeafPlace,
    group_of,
    kind_of,
    place_of,
)

_MAX_LAYERS = 1024
_MAX_KINDS = 32
_OUTSIDE = "outside layers"
_ALL = "all layers"

# The order of the columns; other kinds come between the first and the last ones.
_FIRST_KINDS = ("embedding", "norm", "qkv", *"qkvo", "gate", "up", "down", "conv", "bias")
_LAST_KINDS = ("head", "other")

# The state of a cell is the first of these that one of its leaves has.
_STATES = ("nan", "removed", "added", "reshaped", "changed", "unread", "renamed", "equal")
_STATE_OF = {"identical": "equal", "recast": "changed"}
_EQUAL_STATES = ("equal", "identical", "renamed")
# A row: its stack and the number of its layer. No stack: leaves outside of layers.
_Row = tuple[tuple[str, ...] | None, int | None]


class LeafChange(NamedTuple):
    """The difference of one leaf between two checkpoints.

    Attributes:
        key_path: the leaf.
        state: the state of its row: "changed", "equal", "identical", "added" ...
        change_l2: the L2 norm of b - a; None if the values were not compared.
        before_l2: the L2 norm of a; None if its values were not read.
        after_l2: the L2 norm of b; None as well.
        broken: True if the leaf changed, and b has NaNs, or infinite elements where a has none.
    """

    key_path: KeyPath
    state: str
    change_l2: float | None = None
    before_l2: float | None = None
    after_l2: float | None = None
    broken: bool = False


class LayerMatrix(NamedTuple):
    """The change of each layer and kind. Cells are row by row.

    Attributes:
        group: "params", "mu" ...
        layers: labels of the rows.
        kinds: labels of the columns.
        values: the relative L2 norm of the change of the leaves of a cell; None if there are no
            leaves or they were not compared.
        states: "nan", "added", "removed", "reshaped", "changed", "unread", "renamed" or "equal";
            None if there are no leaves.
        leaves: the positions of the leaves of each cell.
    """

    group: str
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[float | None, ...]
    states: tuple[str | None, ...]
    leaves: tuple[tuple[int, ...], ...]


def layer_matrices(changes: Sequence[LeafChange]) -> list[LayerMatrix]:
    """Return a matrix for each group of leaves that has layers, the parameters first."""
    groups: dict[str, dict[int, LeafPlace]] = {"params": {}}
    for position, change in enumerate(changes):
        place = place_of(change.key_path)
        if place is not None:
            groups.setdefault(place.group, {})[position] = place
    matrices = [_matrix(group, places, changes) for group, places in groups.items()]
    return [matrix for matrix in matrices if matrix is not None]


def relative_l2(changes: Iterable[LeafChange]) -> float | None:
    """Return the norm of the changes relative to the norm of the leaves before.

    Leaves that are equal by digest have no norm, since they were not read: they do not count
    unless all are equal. None if another leaf was not compared.
    """
    changes = list(changes)
    different = [change for change in changes if change.state not in _EQUAL_STATES]
    if not different:
        return 0.0 if changes else None
    if any(change.change_l2 is None or change.before_l2 is None for change in different):
        return None
    change_l2 = math.hypot(*[change.change_l2 or 0.0 for change in different])
    before_l2 = math.hypot(*[change.before_l2 or 0.0 for change in changes])
    if not before_l2:
        return math.inf if change_l2 else 0.0
    return change_l2 / before_l2


def _matrix(
    group: str, places: dict[int, LeafPlace], changes: Sequence[LeafChange]
) -> LayerMatrix | None:
    """Return the matrix of the leaves of a group; None if they are in no layers."""
    typical = any(place.typical for place in places.values())
    cells = {position: _cell(place, typical=typical) for position, place in places.items()}
    rows = _rows([row for row, _ in cells.values()])
    if not any(stack for stack, _ in rows) or len(rows) > _MAX_LAYERS:
        return None
    kinds = _columns([kind for _, kind in cells.values()])
    row_numbers = {row: number for number, row in enumerate(rows)}
    column_numbers = {kind: number for number, kind in enumerate(kinds)}
    leaves: list[list[int]] = [[] for _ in range(len(rows) * len(kinds))]
    for position, (row, kind) in cells.items():
        column = column_numbers.get(kind, len(kinds) - 1)
        leaves[row_numbers[row] * len(kinds) + column].append(position)
    members = [[changes[position] for position in cell] for cell in leaves]
    return LayerMatrix(
        group,
        tuple(_labels(rows)),
        tuple(kinds),
        tuple(map(relative_l2, members)),
        tuple(map(_state, members)),
        tuple(map(tuple, leaves)),
    )


def _cell(place: LeafPlace, *, typical: bool) -> tuple[_Row, str]:
    """Return the row and the kind of a leaf.

    Stacks of unusual names count only where there are no others: `Dense_0` is a layer of a small
    network, but not of a transformer.
    """
    inside = place.stack or place.layer is not None
    if inside and (place.typical or not typical):
        return (place.stack, place.layer), place.kind
    kinds = (*_FIRST_KINDS, *_LAST_KINDS)
    return (None, None), place.kind if place.kind in kinds else kind_of(place.stack) or "other"


def _rows(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows in order: leaves outside of layers, then one stack after another."""
    rows = list(dict.fromkeys(rows))
    order = {stack: position for position, stack in enumerate(dict(rows))}
    order[None] = -1
    return sorted(rows, key=lambda row: (order[row[0]], -1 if row[1] is None else row[1]))


def _columns(kinds: Sequence[str]) -> list[str]:
    """Return the kinds in the order of the columns; if there are too many, the most frequent.

    The last column is then "other", and has the leaves of all other kinds.
    """
    counts = Counter(kinds)
    if len(counts) > _MAX_KINDS:
        frequent = [kind for kind, _ in counts.most_common(_MAX_KINDS - 1) if kind != "other"]
        counts = Counter([kind for kind in counts if kind in frequent] + ["other"])
    first = [kind for kind in _FIRST_KINDS if kind in counts]
    last = [kind for kind in _LAST_KINDS if kind in counts]
    return [*first, *[kind for kind in counts if kind not in (*first, *last)], *last]


def _labels(rows: Sequence[_Row]) -> list[str]:
    """Return the labels of rows: the number, after the names that tell the stacks apart."""
    stacks = list(dict.fromkeys([stack for stack, _ in rows if stack is not None]))
    names = dict(zip(stacks, _distinct_names(stacks), strict=True))
    labels = []
    for stack, layer in rows:
        if stack is None:
            labels.append(_OUTSIDE)
        else:
            number = _ALL if layer is None else str(layer)
            labels.append(f"{names[stack]} {number}".strip())
    return labels


def _distinct_names(stacks: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the names of stacks without the first and the last ones that all have."""
    if len(stacks) == 1:
        return [""]
    start = _common(stacks)
    reverse = [stack[start:][::-1] for stack in stacks]
    stop = _common(reverse)
    return ["/".join(stack[stop:][::-1]) for stack in reverse]


def _common(stacks: Sequence[tuple[str, ...]]) -> int:
    """Return the number of leading names that all stacks have."""
    count = 0
    for names in zip(*stacks, strict=False):
        if len(set(names)) > 1:
            break
        count += 1
    return count


def _state(cell: Sequence[LeafChange]) -> str | None:
    states = {_STATE_OF.get(change.state, change.state) for change in cell}
    if any(change.broken for change in cell):
        return "nan"
    return next((state for state in _STATES if state in states), None)


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
        groups.setdefault(group_of(change.key_path) or "", []).append(change)
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
    for (a, b), equal in paths.items():
        text = format_path(equal[0])
        if len(equal) > 1:
            text += f" and {counted(len(equal) - 1, 'other counter')}"
        facts.append(OptimizerFact("steps", a, b, b - a, text))
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
    before = hypot(*[change.before_l2 or 0.0 for change in read])
    after = hypot(*[change.after_l2 or 0.0 for change in read])
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
    for matrix in matrices:
        columns = len(matrix.kinds)
        for row, layer in enumerate(matrix.layers if matrix.group == "params" else ()):
            cells = matrix.leaves[row * columns : (row + 1) * columns]
            ratio = relative_l2([changes[leaf] for leaves in cells for leaf in leaves])
            if ratio is not None:
                updates[layer] = ratio
    return updates
