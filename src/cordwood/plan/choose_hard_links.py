"""Deduplication: decide which files of the previous step a save keeps by hard links. Pure.

A file is linked while at least half of its bytes are still those of the tree: its other bytes
occupy the disk as long as the link exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from cordwood.plan.assign_to_files import CellAssignment, CellRange, Gap, PackPart

MAX_BYTES_PER_LIVE_BYTE = 2  # a linked file has at least one byte of the tree in that many
MIN_UNCHANGED_BYTES = 1 << 20  # fewer unchanged bytes are not written to files of their own
UNUSED = -1  # the leaf number of a cell that the tree does not have
_SAMPLE = 64  # cells: if all of them have changed, no other cell is compared
_UNCOMPARED_PART = 64  # cells with 1/64 of the bytes, the smallest, are not compared


class StoredCell(NamedTuple):
    """A cell in a file, or a range of the file that belongs to no leaf of the tree."""

    leaf: int  # or UNUSED
    cell: int
    offset: int  # in bytes, from the start of the file
    length: int


def cells_of_process(assignment: CellAssignment, process: int) -> set[tuple[int, int]]:
    """Return the cells that a process writes: pairs of leaf number and cell number."""
    return {
        (leaf, cell)
        for number, cell, start, stop, _ in assignment.by_process[process]
        for leaf in assignment.groups[number].leaves[start:stop]
    }


def should_link(cells: Sequence[StoredCell], same: Collection[int]) -> bool:
    """Return True if a file is to be linked; `same` are the positions of its unchanged cells."""
    live = sum([cells[i].length for i in same])
    return live > 0 and live * MAX_BYTES_PER_LIVE_BYTE >= sum([cell.length for cell in cells])


def should_separate_unchanged(sizes: Iterable[int]) -> bool:
    """Return True if unchanged cells that are written again get files of their own."""
    return sum(sizes) >= MIN_UNCHANGED_BYTES


def comparison_order(cells: Sequence[StoredCell]) -> tuple[list[int], list[int]]:
    """Return positions of cells in the order of comparison: a sample, then the others.

    If all cells of the sample have changed, the others need no comparison. The smallest cells,
    which together hold next to nothing, are in neither list.
    """
    order = [i for i, cell in enumerate(cells) if cell.leaf != UNUSED and cell.length]
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
    parts: list[PackPart | Gap] = []
    leaves: list[int] = []
    number = gap = 0

    def finish() -> None:
        nonlocal gap
        if leaves:
            parts.append(PackPart(tuple(leaves), number))
            leaves.clear()
        if gap:
            parts.append(Gap(gap))
            gap = 0

    kept = frozenset(same)
    for i, (leaf, cell, _, length) in enumerate(cells):
        if i not in kept:
            if leaves and length:
                finish()
            gap += length
            continue
        if gap or (leaves and (cell != number or leaf <= leaves[-1])):
            finish()
        number = cell
        leaves.append(leaf)
    finish()
    return tuple(parts)


def exclude_cells(
    assignment: CellAssignment, ranges: Sequence[CellRange], cells: Collection[tuple[int, int]]
) -> tuple[CellRange, ...]:
    """Return the cell ranges without `cells`, which are pairs of leaf and cell number."""
    return _filter(assignment, ranges, frozenset(cells), keep=False)


def include_cells(
    assignment: CellAssignment, ranges: Sequence[CellRange], cells: Collection[tuple[int, int]]
) -> tuple[CellRange, ...]:
    """Return the cell ranges limited to `cells`, which are pairs of leaf and cell number."""
    return _filter(assignment, ranges, frozenset(cells), keep=True)


def _filter(
    assignment: CellAssignment,
    ranges: Sequence[CellRange],
    cells: frozenset[tuple[int, int]],
    *,
    keep: bool,
) -> tuple[CellRange, ...]:
    result: list[CellRange] = []
    for cell_range in ranges:
        first: int | None = None
        leaves = assignment.groups[cell_range.group].leaves
        for i in range(cell_range.start, cell_range.stop):
            if ((leaves[i], cell_range.cell) in cells) == keep:
                first = i if first is None else first
            elif first is not None:
                result.append(cell_range._replace(start=first, stop=i))
                first = None
        if first is not None:
            result.append(cell_range._replace(start=first))
    return tuple(result)
