"""The packs that the cells of a process are put into, and their order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from typing import NamedTuple, TypeAlias

from cordwood.plan.cells import CellAssignment, CellRange, LeafGroup

TENSOR_ALIGNMENT = 64  # jax.device_put aliases only memory that is aligned so


def data_order(length: int, itemsize: int) -> tuple[bool, int]:
    """Return the sort key of an array of `length` bytes in a file without gaps between arrays.

    So arrays whose length is a multiple of 64 begin at multiples of 64, and every other array
    begins at a multiple of its item size. Arrays of equal key keep their order.

    >>> sorted([(4, 4), (128, 2), (3, 1), (8, 8)], key=lambda array: data_order(*array))
    [(128, 2), (8, 8), (4, 4), (3, 1)]
    """
    aligned = length % TENSOR_ALIGNMENT == 0
    return (not aligned, 0 if aligned else -itemsize)


class PackPart(NamedTuple):
    """One cell of several leaves; a file holds it for each leaf, in this order."""

    leaves: tuple[int, ...]  # ascending
    cell: int


class Gap(NamedTuple):
    """Bytes of a file that no leaf uses: an earlier save has written the file."""

    size_bytes: int


class Pack(NamedTuple):
    """The contents of one file, in the order of its data."""

    parts: tuple[PackPart, ...]
    data_bytes: int


class _Run(NamedTuple):
    """Leaves of which a process writes the same cell."""

    leaves: tuple[int, ...]
    run: int  # its position among the runs of the process


class _Bin(NamedTuple):
    """A pack whose cells have no numbers yet."""

    runs: tuple[_Run, ...]
    data_bytes: int


_LeafRange: TypeAlias = tuple[int, int, int, int]  # group, start, stop, size of the cell
_Outline: TypeAlias = tuple[tuple[_LeafRange, ...], ...]  # the ranges of each run
_BinCache: TypeAlias = dict[tuple[_Outline, int], list[_Bin]]


def packs_of_process(assignment: CellAssignment, process: int) -> tuple[Pack, ...]:
    """Return the files that one process writes, of the sizes in `assignment.sizes`.

    Cells that other processes hold too come last. Within a file, arrays are in `data_order`, then
    by cell, then by leaf. So the files of processes with similar shards differ in little but the
    numbers of their cells, and the index can describe all of them at once.
    """
    return packs_of_ranges(assignment, assignment.by_process[process])


def packs_of_all(assignment: CellAssignment) -> list[tuple[Pack, ...]]:
    """Return the files of each process; see `packs_of_process`. Equal parts are shared."""
    cache: _BinCache = {}
    return [packs_of_ranges(assignment, ranges, cache) for ranges in assignment.by_process]


def packs_of_ranges(
    assignment: CellAssignment, ranges: Sequence[CellRange], cache: _BinCache | None = None
) -> tuple[Pack, ...]:
    """Return the files for some of the cells that a process writes; see `packs_of_process`."""
    cache = {} if cache is None else cache
    groups, sizes = assignment.groups, assignment.sizes
    runs_by_key: dict[tuple[bool, tuple[bool, int], int], list[_LeafRange]] = {}
    for number, cell, start, stop, replicated in ranges:
        group = groups[number]
        size = group.cell_bytes[cell]
        key = (replicated, data_order(size, group.itemsize), cell)
        runs_by_key.setdefault(key, []).append((number, start, stop, size))
    keys = sorted(runs_by_key)
    outline = tuple([tuple(runs_by_key[key]) for key in keys])
    forced = sum([not key[0] for key in keys])
    limit = sizes.pack_bytes
    bins = _bins(groups, outline, forced, limit, cache)
    while sizes.are_too_many(len(bins), limit):
        limit *= 2
        bins = _bins(groups, outline, forced, limit, cache)
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
    groups: Sequence[LeafGroup], outline: _Outline, forced: int, limit: int, cache: _BinCache
) -> list[_Bin]:
    """Return bins for the first `forced` runs, which are equal on many processes, and the rest."""
    common = cache.get((outline[:forced], limit))
    if common is None:
        common = _split(groups, list(enumerate(outline[:forced])), limit, [])
        cache[outline[:forced], limit] = common
    if forced == len(outline):
        return common
    return _split(groups, list(enumerate(outline))[forced:], limit, common)


def _split(
    groups: Sequence[LeafGroup],
    outline: Sequence[tuple[int, Sequence[_LeafRange]]],
    limit: int,
    start_bins: Sequence[_Bin],
) -> list[_Bin]:
    """Put runs into bins of at most `limit` bytes; the last bin of `start_bins` is filled first."""
    bins = list(start_bins)
    runs, total = bins.pop() if bins else _Bin((), 0)
    for run, leaf_ranges in outline:
        leaves: list[int] = []
        sizes = [
            [(leaf, size) for leaf in groups[number].leaves[start:stop]]
            for number, start, stop, size in leaf_ranges
        ]
        for leaf, size in merge(*sizes):
            if total + size > limit and (leaves or runs):
                runs += (_Run(tuple(leaves), run),) if leaves else ()
                bins.append(_Bin(runs, total))
                leaves, runs, total = [], (), 0
            leaves.append(leaf)
            total += size
        runs += (_Run(tuple(leaves), run),)
    return [*bins, _Bin(runs, total)] if runs else bins
