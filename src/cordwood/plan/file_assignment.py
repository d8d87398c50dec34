"""Which of a process's cells go into which file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from typing import NamedTuple, TypeAlias

from cordwood.plan.cell_assignment import CellAssignment, CellRange, LeafGroup
from cordwood.plan.data_order import data_order


def shards_by_size(sizes: Sequence[int], most_bytes: int | None) -> list[list[int]]:
    """Return which arrays go into which file, in their order; one file at least.

    Args:
        sizes: of the arrays, in bytes.
        most_bytes: of one file; a larger array has a file of its own. None: no limit.

    >>> shards_by_size([3, 3, 9, 1], 6)
    [[0, 1], [2], [3]]
    """
    shards: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        if most_bytes is not None and shards[-1] and total + size > most_bytes:
            shards.append([])
            total = 0
        shards[-1].append(number)
        total += size
    return shards


class PackPart(NamedTuple):
    """One cell of some leaves; in a file they follow one another in this order."""

    leaves: tuple[int, ...]  # ascending
    cell: int


class Gap(NamedTuple):
    """Bytes of a file that no leaf uses: it was written by an earlier save."""

    size_bytes: int


class Pack(NamedTuple):
    """The contents of one file, in the order of its data."""

    parts: tuple[PackPart, ...]
    data_bytes: int


class _Run(NamedTuple):
    """Leaves of which a process writes one cell, the same of each."""

    leaves: tuple[int, ...]
    run: int  # which run of the process it is of


class _Bin(NamedTuple):
    """A pack, its cells not yet numbered."""

    runs: tuple[_Run, ...]
    data_bytes: int


_Item: TypeAlias = tuple[int, int, int, int]  # group, start, stop, size of the cell
_Outline: TypeAlias = tuple[tuple[_Item, ...], ...]  # the items of each run
_Known: TypeAlias = dict[tuple[_Outline, int], list[_Bin]]


def packs_of_process(shares: CellAssignment, process: int) -> tuple[Pack, ...]:
    """The files that one process writes: as large as `shares.sizes` says.

    What others could have written as well comes last. Within a file, arrays are in
    `data_order`, then by cell, then by leaf. So processes that hold like shards write files
    that differ in little but the numbers of their cells, and the index can say of all at once
    what they hold.
    """
    return _packs(shares, shares.by_process[process], {})


def packs_of_ranges(shares: CellAssignment, own: Sequence[CellRange]) -> tuple[Pack, ...]:
    """As `packs_of_process`, of a part of what a process writes."""
    return _packs(shares, own, {})


def packs_of_all(shares: CellAssignment) -> list[tuple[Pack, ...]]:
    """`packs_of_process` of each process, which share what is equal."""
    known: _Known = {}
    return [_packs(shares, own, known) for own in shares.by_process]


def _packs(shares: CellAssignment, own: Sequence[CellRange], known: _Known) -> tuple[Pack, ...]:
    groups, sizes = shares.groups, shares.sizes
    items: dict[tuple[bool, tuple[bool, int], int], list[_Item]] = {}
    for number, cell, start, stop, free in own:
        group = groups[number]
        size = group.cell_bytes[cell]
        key = (free, data_order(size, group.itemsize), cell)
        items.setdefault(key, []).append((number, start, stop, size))
    keys = sorted(items)
    outline = tuple([tuple(items[key]) for key in keys])
    forced = sum([not key[0] for key in keys])
    limit = sizes.pack_bytes
    while len(bins := _bins(groups, outline, forced, limit, known)) > sizes.max_packs:
        limit *= 2
    return tuple(
        [
            Pack(
                tuple(
                    [
                        PackPart(leaves, keys[run][2])
                        for leaves, run in sorted(runs, key=lambda run: keys[run.run][1])
                    ]
                ),
                size,
            )
            for runs, size in bins
        ]
    )


def _bins(
    groups: Sequence[LeafGroup], outline: _Outline, forced: int, limit: int, known: _Known
) -> list[_Bin]:
    """The first `forced` runs, which many processes have alike, and the rest after them."""
    common = known.get((outline[:forced], limit))
    if common is None:
        common = _split(groups, list(enumerate(outline[:forced])), limit, [])
        known[outline[:forced], limit] = common
    if forced == len(outline):
        return common
    return _split(groups, list(enumerate(outline))[forced:], limit, common)


def _split(
    groups: Sequence[LeafGroup],
    outline: Sequence[tuple[int, Sequence[_Item]]],
    limit: int,
    begun: Sequence[_Bin],
) -> list[_Bin]:
    """Put runs into bins of at most `limit` bytes, the last one of `begun` first."""
    bins = list(begun)
    runs, total = bins.pop() if bins else _Bin((), 0)
    for run, items in outline:
        leaves: list[int] = []
        for leaf, size in merge(*[_entries(groups, item) for item in items]):
            if total + size > limit and (leaves or runs):
                runs += (_Run(tuple(leaves), run),) if leaves else ()
                bins.append(_Bin(runs, total))
                leaves, runs, total = [], (), 0
            leaves.append(leaf)
            total += size
        runs += (_Run(tuple(leaves), run),)
    return [*bins, _Bin(runs, total)] if runs else bins


def _entries(groups: Sequence[LeafGroup], item: _Item) -> list[tuple[int, int]]:
    number, start, stop, size = item
    return [(leaf, size) for leaf in groups[number].leaves[start:stop]]
