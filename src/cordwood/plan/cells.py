"""Assignment of the cells of a tree to the processes that write them. Pure.

Every process computes the same assignment from the shardings, which jax keeps global. Leaves of
equal shape, item size and sharding are planned once, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from cordwood.sharding.boxes import Cuts, ShardGrid

SMALL_BYTES = 1 << 20  # an array of at most this size is one file, not one for each shard
MIN_PART_BYTES = 1 << 20  # cells are not cut into smaller parts, each of which is a tensor
_SLACK = 50  # a process may write 1/50 more than its even share
_EVEN = 20  # rows of a part: with so many, one row more or less is within 5 %


class FileSizes(NamedTuple):
    """Limits for the files of a process."""

    pack_bytes: int  # approximate size of a file; a cell is never in two files
    max_packs: int  # files of a process; if more would be needed, each one is larger
    part_bytes: int | None  # a larger cell is cut, if an axis allows it; None: never
    few_packs: int = 0  # if more would be needed, each one is larger, up to large_pack_bytes
    large_pack_bytes: int = 0

    def are_too_many(self, count: int, pack_bytes: int) -> bool:
        """Return True if files of that size are too many, so that each must be larger."""
        is_small = pack_bytes < self.large_pack_bytes
        return count > self.max_packs or (is_small and count > self.few_packs)


class ShardedLeaf(NamedTuple):
    """A leaf whose elements are stored in packs, and its shards."""

    leaf: int  # its position in the tree
    itemsize: int
    shards: ShardGrid


class LeafGroup(NamedTuple):
    """Leaves with equal cells and equal holders."""

    leaves: tuple[int, ...]  # ascending
    shape: tuple[int, ...]
    itemsize: int
    cuts: Cuts
    cell_bytes: tuple[int, ...]  # of each cell, in C order


class CellRange(NamedTuple):
    """One cell of the leaves [start, stop) of a group, written by one process."""

    group: int
    cell: int
    start: int
    stop: int
    replicated: bool  # other processes hold it too, and any of them could write it


class CellAssignment(NamedTuple):
    """The cells that each process writes."""

    groups: tuple[LeafGroup, ...]
    by_process: tuple[tuple[CellRange, ...], ...]
    bytes_by_process: tuple[int, ...]
    sizes: FileSizes


def assign_cells(
    stored: Sequence[ShardedLeaf], *, process_count: int, sizes: FileSizes
) -> CellAssignment:
    """Assign the cells of all leaves to the processes that hold them.

    A cell that several processes hold is cut among them if each part has MIN_PART_BYTES.
    Otherwise one process writes all of it: the first whose share stays about even, or else the
    one with the smallest share. So the many small leaves, which every process reads at loading,
    are in a few files, and not in one file of each process.

    Raises:
        ValueError: a holder is not below `process_count`.
    """
    groups: list[LeafGroup] = []
    choices: list[tuple[int, int, int, tuple[int, ...]]] = []  # bytes, group, cell, holders
    ranges: list[list[CellRange]] = [[] for _ in range(process_count)]
    loads = [0] * process_count
    for leaves, itemsize, shards in _grouped(stored):
        cuts, parts, axis, owners = _cut(shards, itemsize, sizes.part_bytes)
        cell_bytes = [prod(cell) * itemsize for cell in product(*_widths(shards.shape, cuts))]
        number, count = len(groups), len(leaves)
        groups.append(LeafGroup(leaves, shards.shape, itemsize, cuts, tuple(cell_bytes)))
        for cell, (holders, part) in enumerate(_holders(shards, parts, axis)):
            if max(holders) >= process_count:
                raise ValueError(f"process {max(holders)} holds a shard of {process_count}")
            if len(holders) == owners:
                process = holders[part * owners // parts]
                ranges[process].append(CellRange(number, cell, 0, count, False))
                loads[process] += cell_bytes[cell] * count
            else:
                choices.append((-cell_bytes[cell], number, cell, holders))
    total = sum([sum(group.cell_bytes) * len(group.leaves) for group in groups])
    most = total * (_SLACK + 1) // (_SLACK * process_count)
    for size, number, cell, holders in sorted(choices):
        counts = _deal([loads[p] for p in holders], -size, len(groups[number].leaves), most)
        start = 0
        for process, count in zip(holders, counts, strict=True):
            if count:
                ranges[process].append(CellRange(number, cell, start, start + count, True))
                loads[process] -= size * count
                start += count
    return CellAssignment(tuple(groups), tuple(map(tuple, ranges)), tuple(loads), sizes)


def _grouped(stored: Iterable[ShardedLeaf]) -> Iterator[tuple[tuple[int, ...], int, ShardGrid]]:
    """Group leaves of equal item size and shards; a grid that many leaves share is hashed once."""
    by_identity: dict[tuple[int, int], tuple[list[int], ShardGrid]] = {}
    for leaf, itemsize, shards in stored:
        by_identity.setdefault((itemsize, id(shards)), ([], shards))[0].append(leaf)
    groups: dict[tuple[int, ShardGrid], list[int]] = {}
    for (itemsize, _), (leaves, shards) in by_identity.items():
        groups.setdefault((itemsize, shards), []).extend(leaves)
    for (itemsize, shards), leaves in groups.items():
        yield tuple(sorted(leaves)), itemsize, shards


def _cut(shards: ShardGrid, itemsize: int, part_bytes: int | None) -> tuple[Cuts, int, int, int]:
    """Return the cuts of a group, and how they divide each cell among its holders.

    Returns:
        The cuts; the number of parts of each cell; the axis along which it is cut; the number of
        holders that share the parts.
    """
    cuts = shards.cuts
    widths = _widths(shards.shape, cuts)
    room = [min(axis) for axis in widths]
    owners = max(1, min(min(map(len, shards.holders)), prod(room) * itemsize // MIN_PART_BYTES))
    parts = owners
    if part_bytes is not None:
        largest = prod([max(axis) for axis in widths]) * itemsize
        parts = owners * max(1, -(-largest // (owners * part_bytes)))
    if parts < 2 or not room:
        return cuts, 1, 0, 1
    even = [n for n, axis in enumerate(widths) if _divides(axis, parts)]
    axis = even[0] if even else max(range(len(room)), key=lambda n: (room[n], -n))
    parts = min(parts, room[axis])
    owners = min(owners, parts)
    parts -= parts % owners
    if parts < 2:
        return cuts, 1, 0, 1
    starts = [
        a + i * width // parts
        for a, width in zip(cuts[axis], widths[axis], strict=True)
        for i in range(parts)
    ]
    return (*cuts[:axis], tuple(starts), *cuts[axis + 1 :]), parts, axis, owners


def _divides(widths: Iterable[int], parts: int) -> bool:
    """Return True if all widths divide into that many parts of about equal size."""
    return all(width >= _EVEN * parts or width % parts == 0 for width in widths)


def _widths(shape: Sequence[int], cuts: Cuts) -> list[list[int]]:
    """Return the extents of the cells along each axis."""
    return [
        [b - a for a, b in zip(starts, (*starts[1:], size), strict=True)]
        for starts, size in zip(cuts, shape, strict=True)
    ]


def _holders(shards: ShardGrid, parts: int, axis: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield, for each cell of the finer grid, its holders and the number of its part."""
    counts = [len(starts) for starts in shards.cuts]
    inner = prod(counts[axis + 1 :])  # shards that follow one another along the later axes
    for row in range(0, len(shards.holders), inner):
        for part in range(parts):
            for holders in shards.holders[row : row + inner]:
                yield holders, part


def _deal(loads: Sequence[int], size: int, count: int, most: int) -> list[int]:
    """Return the number of items, of `count` of one size, that each holder gets.

    Each holder in turn gets as many as keep its load within `most`. The others are distributed
    so that the loads become about equal.
    """
    counts = []
    for load in loads:
        fit = min(count, max(0, most - load) // size) if size else count
        counts.append(fit)
        count -= fit
    leveled = _fill([load + n * size for load, n in zip(loads, counts, strict=True)], size, count)
    return list(map(int.__add__, counts, leveled))


def _fill(loads: Sequence[int], size: int, count: int) -> list[int]:
    """Return the number of items, of `count` of one size, that each holder gets for level loads."""
    counts = [0] * len(loads)
    if len(loads) == 1 or not size:
        counts[0] = count
        return counts
    order = sorted(range(len(loads)), key=lambda i: (loads[i], i))
    total = count * size
    used = 1  # the number of holders that get items: those with loads below the final level
    total += loads[order[0]]
    while used < len(order) and loads[order[used]] * used < total:
        total += loads[order[used]]
        used += 1
    level = total // used
    for i in order[:used]:
        counts[i] = (level - loads[i]) // size
    remainder = count - sum(counts)
    for i in sorted(order[:used], key=lambda i: (loads[i] + counts[i] * size, i))[:remainder]:
        counts[i] += 1
    return counts


def cell_bytes_of_leaves(assignment: CellAssignment, process: int, leaf_count: int) -> list[int]:
    """Return the number of bytes of each leaf that a process writes."""
    sizes = [0] * leaf_count
    for number, cell, start, stop, _ in assignment.by_process[process]:
        group = assignment.groups[number]
        for leaf in group.leaves[start:stop]:
            sizes[leaf] += group.cell_bytes[cell]
    return sizes


def merge_small_shards(shards: ShardGrid, itemsize: int) -> ShardGrid:
    """Return the grid in which the chunks of an array are cut: that of its shards.

    A small array that some process holds completely is not cut: otherwise half of the files of a
    large sharded model would be shards of norms and biases.
    """
    if prod(shards.shape) * itemsize > SMALL_BYTES or len(shards.holders) < 2:
        return shards
    common = set.intersection(*map(set, shards.holders))
    if not common:
        return shards
    return ShardGrid(shards.shape, ((0,),) * len(shards.shape), (tuple(sorted(common)),))


def cells_of_process(assignment: CellAssignment, process: int) -> set[tuple[int, int]]:
    """Return the cells that a process writes: pairs of leaf number and cell number."""
    return {
        (leaf, cell)
        for number, cell, start, stop, _ in assignment.by_process[process]
        for leaf in assignment.groups[number].leaves[start:stop]
    }
