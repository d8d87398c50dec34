"""The choice of the files of the previous step that a step shares with it. Pure.

A file of the previous step is linked while at least half of its bytes are still those of the tree:
its other bytes occupy the disk as long as the link exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from cordwood.plan.cells import CellAssignment, CellRange
from cordwood.plan.packs import Gap, PackPart

MAX_BYTES_PER_LIVE_BYTE = 2  # a linked file has at least one byte of the tree in that many
MAX_POOLED_BYTES_PER_LIVE_BYTE = 64  # in a store: what is sent again is at most 1/64 of a file
MIN_UNCHANGED_BYTES = 1 << 20  # fewer unchanged bytes are not written to files of their own
_SAMPLE = 64  # cells: if all of them have changed, no other cell is compared
_UNCOMPARED_PART = 64  # cells with 1/64 of the bytes, the smallest, are not compared


class StoredCell(NamedTuple):
    """A cell in a file, or a range of the file that belongs to no leaf of the tree."""

    leaf: int | None  # None: the tree has no such leaf
    cell: int
    offset: int  # in bytes, from the start of the file
    length: int


def cells_at(cells: Sequence[StoredCell], same: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return leaf and cell number of the cells at the positions `same`, which the tree has."""
    result = {}
    for i in same:
        leaf, cell, _, _ = cells[i]
        assert leaf is not None
        result[i] = leaf, cell
    return result


def should_link(
    cells: Sequence[StoredCell],
    same: Collection[int],
    *,
    bytes_per_live_byte: int = MAX_BYTES_PER_LIVE_BYTE,
) -> bool:
    """Return True if a file is to be linked; `same` are the positions of its unchanged cells."""
    live = sum([cells[i].length for i in same])
    return live > 0 and live * bytes_per_live_byte >= sum([cell.length for cell in cells])


def should_separate_unchanged(sizes: Iterable[int]) -> bool:
    """Return True if unchanged cells that are written again get files of their own."""
    return sum(sizes) >= MIN_UNCHANGED_BYTES


def comparison_order(cells: Sequence[StoredCell]) -> tuple[list[int], list[int]]:
    """Return positions of cells in the order of comparison: a sample, then the others.

    If all cells of the sample have changed, the others need no comparison. The smallest cells,
    which together hold next to nothing, are in neither list.
    """
    order = [i for i, cell in enumerate(cells) if cell.leaf is not None and cell.length]
    order.sort(key=lambda i: (-cells[i].length, i))
    uncompared = sum([cell.length for cell in cells]) // _UNCOMPARED_PART
    while len(order) > _SAMPLE and cells[order[-1]].length <= uncompared:
        uncompared -= cells[order.pop()].length
    step = -(-len(order) // _SAMPLE) or 1
    return order[::step], [i for n, i in enumerate(order) if n % step]


def linked_parts(cells: Sequence[StoredCell], same: Collection[int]) -> tuple[PackPart | Gap, ...]:
    """Return the index entry of a linked file: the cells at the positions `same`, and gaps.

    Args:
        cells: all cells of the file from the end of its header on, one directly after another.
        same: the positions of the cells that the tree has.
    """
    # A cell and its leaves, or None and the sizes of a gap.
    runs: list[tuple[int | None, list[int]]] = []
    unchanged = frozenset(same)
    for i, (leaf, cell, _, length) in enumerate(cells):
        number, value = (None, length) if leaf is None or i not in unchanged else (cell, leaf)
        if number is None and not length:
            continue
        if runs and runs[-1][0] == number and (number is None or value > runs[-1][1][-1]):
            runs[-1][1].append(value)
        else:
            runs.append((number, [value]))
    return tuple(
        [
            Gap(sum(values)) if number is None else PackPart(tuple(values), number)
            for number, values in runs
        ]
    )


def select_cells(
    assignment: CellAssignment,
    ranges: Sequence[CellRange],
    cells: Collection[tuple[int, int]],
    *,
    keep: bool,
) -> tuple[CellRange, ...]:
    """Return the cell ranges limited to `cells`, or without them if `keep` is False.

    Cells are pairs of leaf and cell number.
    """
    chosen = frozenset(cells)
    result: list[CellRange] = []
    for each in ranges:
        leaves = assignment.groups[each.group].leaves[each.start : each.stop]
        start = each.start
        for is_selected, run in groupby([((leaf, each.cell) in chosen) == keep for leaf in leaves]):
            stop = start + len(list(run))
            if is_selected:
                result.append(each._replace(start=start, stop=stop))
            start = stop
    return tuple(result)
