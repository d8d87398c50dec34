"""Which files of an older checkpoint a save takes over as they are, by hard links. Pure.

A file is worth a link while most of its bytes are still those of the tree: what it holds beside
them stays on the disk as long as the link does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from cordwood.plan.cell_assignment import CellAssignment, CellRange
from cordwood.plan.file_assignment import Gap, PackPart

MAX_BYTES_PER_LIVE_BYTE = 2  # at least one byte in that many of a linked file is of the tree
MIN_UNCHANGED_BYTES = 1 << 20  # fewer that do not change are not worth a file without the others
UNUSED = -1  # the leaf of a cell that the tree does not have
_SAMPLE = 64  # cells: where all of them have changed, no other is looked at
_UNSEEN_PART = (
    64  # of a file: so little of it, in its smallest cells, is not worth looks of its own
)


class StoredCell(NamedTuple):
    """A cell as it lies in a file, or a range of it that is nobody's."""

    leaf: int
    cell: int
    offset: int  # in bytes, from the start of the file
    length: int


def cells_of_process(shares: CellAssignment, process: int) -> set[tuple[int, int]]:
    """The cells that a process writes: leaf, and number of the cell."""
    return {
        (leaf, cell)
        for number, cell, start, stop, _ in shares.by_process[process]
        for leaf in shares.groups[number].leaves[start:stop]
    }


def should_link(cells: Sequence[StoredCell], same: Collection[int]) -> bool:
    """Whether a file is to be linked of whose cells those at the positions `same` are unchanged."""
    live = sum([cells[i].length for i in same])
    return live > 0 and live * MAX_BYTES_PER_LIVE_BYTE >= sum([cell.length for cell in cells])


def should_separate_unchanged(sizes: Iterable[int]) -> bool:
    """Whether cells that have not changed, but are written anew, get files of their own."""
    return sum(sizes) >= MIN_UNCHANGED_BYTES


def comparison_order(cells: Sequence[StoredCell]) -> tuple[list[int], list[int]]:
    """In which order to look whether cells have changed: positions.

    The first ones are a sample: if all of these have changed, there is no need to go on. The
    smallest cells, which hold next to nothing together, are in neither list.
    """
    order = [i for i, cell in enumerate(cells) if cell.leaf != UNUSED and cell.length]
    order.sort(key=lambda i: (-cells[i].length, i))
    unseen = sum([cell.length for cell in cells]) // _UNSEEN_PART
    while len(order) > _SAMPLE and cells[order[-1]].length <= unseen:
        unseen -= cells[order.pop()].length
    step = -(-len(order) // _SAMPLE) or 1
    return order[::step], [i for n, i in enumerate(order) if n % step]


def linked_parts(cells: Sequence[StoredCell], same: Collection[int]) -> tuple[PackPart | Gap, ...]:
    """What the index says of a linked file: the cells at the positions `same`, and gaps.

    Args:
        cells: what lies in the file from the end of its header on, without gaps between them.
        same: positions of cells that the tree has.
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
    shares: CellAssignment, own: Sequence[CellRange], cells: Collection[tuple[int, int]]
) -> tuple[CellRange, ...]:
    """Shares of a process less some cells, each a leaf and a number."""
    return _filtered(shares, own, frozenset(cells), kept=False)


def include_cells(
    shares: CellAssignment, own: Sequence[CellRange], cells: Collection[tuple[int, int]]
) -> tuple[CellRange, ...]:
    """Of the shares of a process those cells alone."""
    return _filtered(shares, own, frozenset(cells), kept=True)


def _filtered(
    shares: CellAssignment,
    own: Sequence[CellRange],
    cells: frozenset[tuple[int, int]],
    *,
    kept: bool,
) -> tuple[CellRange, ...]:
    found: list[CellRange] = []
    for share in own:
        begun: int | None = None
        leaves = shares.groups[share.group].leaves
        for i in range(share.start, share.stop):
            if ((leaves[i], share.cell) in cells) == kept:
                begun = i if begun is None else begun
            elif begun is not None:
                found.append(share._replace(start=begun, stop=i))
                begun = None
        if begun is not None:
            found.append(share._replace(start=begun))
    return tuple(found)
