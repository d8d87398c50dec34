"""Matrices of the change, with a row for each layer and a column for each kind of weight.

There is one for the parameters, and one for each tree like them: the moments of an optimizer,
averages of the parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from cordwood.viewer.leaf_change import LeafChange, relative_l2
from cordwood.viewer.leaf_kinds import LeafPlace, kind_of, place_of

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

# A row: its stack and the number of its layer. No stack: leaves outside of layers.
_Row = tuple[tuple[str, ...] | None, int | None]


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
        place = place_of(change.key_path) if change.is_weight else None
        if place is not None:
            groups.setdefault(place.group, {})[position] = place
    matrices = [_matrix(group, places, changes) for group, places in groups.items()]
    return [matrix for matrix in matrices if matrix is not None]


def _matrix(
    group: str, places: dict[int, LeafPlace], changes: Sequence[LeafChange]
) -> LayerMatrix | None:
    """Return the matrix of the leaves of a group; None if they are in no layers."""
    typical = any(place.typical for place in places.values())
    cells = {position: _cell(place, typical=typical) for position, place in places.items()}
    rows = _matrix_rows([row for row, _ in cells.values()])
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


def _matrix_rows(rows: Iterable[_Row]) -> list[_Row]:
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
    """Return the labels of rows: the number, after the names that distinguish the stacks."""
    stacks = list(dict.fromkeys([stack for stack, _ in rows if stack is not None]))
    names = dict(zip(stacks, _distinct_names(stacks), strict=True))
    return [
        _OUTSIDE if stack is None else f"{names[stack]} {_ALL if layer is None else layer}".strip()
        for stack, layer in rows
    ]


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
    columns = zip(*stacks, strict=False)
    return len(list(takewhile(lambda names: len(set(names)) == 1, columns)))


def _state(cell: Sequence[LeafChange]) -> str | None:
    states = {_STATE_OF.get(change.state, change.state) for change in cell}
    if any(change.broken for change in cell):
        return "nan"
    return next((state for state in _STATES if state in states), None)
