"""Assignment of cells, or of chunk files, to the processes that write them and to files. Pure.

Every process computes the same assignment from the shardings, which jax keeps global. Leaves of
equal shape, item size and sharding are planned once, however many there are.

A file of the previous step is kept, by a hard link, while at least half of its bytes are still
those of the tree: its other bytes occupy the disk as long as the link exists.

One file, because the cells of a process are cut and ordered for the files that it puts them in,
and a cell is in a new file or in a linked one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby, product
from math import prod
from typing import NamedTuple, TypeAlias

from cordwood.plan.file_plan import ChunkFile, PlannedFile
from cordwood.sharding.boxes import Cuts, ShardGrid, element_count

SMALL_BYTES = 1 << 20  # an array of at most this size is one file, not one for each shard
MIN_PART_BYTES = 1 << 20  # cells are not cut into smaller parts, each of which is a tensor
_SLACK = 50  # a process may write 1/50 more than its even share
_EVEN = 20  # rows of a part: with so many, one row more or less is within 5 %
TENSOR_ALIGNMENT = 64  # jax.device_put aliases only memory that is aligned so


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
    rest = _fill([load + n * size for load, n in zip(loads, counts, strict=True)], size, count)
    return list(map(int.__add__, counts, rest))


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
    rest = count - sum(counts)
    for i in sorted(order[:used], key=lambda i: (loads[i] + counts[i] * size, i))[:rest]:
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


def assign_chunk_files(
    files: Sequence[PlannedFile], shards: Sequence[ShardGrid], *, process_count: int
) -> list[int]:
    """Return the process that writes each file.

    A chunk is written by a process that holds its shard. If several do, the one with the least
    bytes to write so far gets it; large chunks are assigned first. Process 0 writes the small
    files.

    Args:
        files: the files to write; each chunk is a cell of its leaf, or a part of one.
        shards: the cells of each leaf; `ChunkFile.leaf` is a position in it.
        process_count: the number of processes that save.

    Raises:
        ValueError: a holder is not below `process_count`.
    """
    writers = [0] * len(files)
    loads = [0] * process_count
    shared: list[tuple[int, int, tuple[int, ...]]] = []  # bytes, file, holders
    for number, file in enumerate(files):
        if not isinstance(file, ChunkFile):
            continue
        holders = _chunk_holders(file, shards[file.leaf])
        if max(holders) >= process_count:
            raise ValueError(f"process {max(holders)} holds a shard of {process_count}")
        size = prod(file.shape) * file.itemsize
        if len(holders) > 1:
            shared.append((-size, number, holders))
        else:
            writers[number] = holders[0]
            loads[holders[0]] += size
    for size, number, holders in sorted(shared):
        writers[number] = min(holders, key=loads.__getitem__)
        loads[writers[number]] -= size
    return writers


def _chunk_holders(file: ChunkFile, shards: ShardGrid) -> tuple[int, ...]:
    cell = 0
    for start, starts in zip(file.box.start, shards.cuts, strict=True):
        cell = cell * len(starts) + bisect_right(starts, start) - 1
    return shards.holders[cell]


def chunk_bytes_of_leaves(
    files: Sequence[PlannedFile], written_by: Sequence[int], process: int, leaf_count: int
) -> list[int]:
    """Return the number of bytes of each leaf that a process writes."""
    sizes = [0] * leaf_count
    for file, writer in zip(files, written_by, strict=True):
        if isinstance(file, ChunkFile) and writer == process:
            sizes[file.leaf] += element_count(file.box) * file.itemsize
    return sizes


# Files


def data_order(length: int, itemsize: int) -> tuple[bool, int]:
    """Return the sort key of an array of `length` bytes in a file without gaps between arrays.

    So arrays whose length is a multiple of 64 begin at multiples of 64, and every other array
    begins at a multiple of its item size. Arrays of equal key keep their order.

    >>> sorted([(4, 4), (128, 2), (3, 1), (8, 8)], key=lambda array: data_order(*array))
    [(128, 2), (8, 8), (4, 4), (3, 1)]
    """
    aligned = length % TENSOR_ALIGNMENT == 0
    return (not aligned, 0 if aligned else -itemsize)


def shards_by_size(sizes: Sequence[int], max_bytes: int | None) -> list[list[int]]:
    """Return the numbers of the arrays in each file, in their order; at least one file.

    Args:
        sizes: the sizes of the arrays, in bytes.
        max_bytes: the limit for one file; a larger array gets its own file. None: no limit.

    >>> shards_by_size([3, 3, 9, 1], 6)
    [[0, 1], [2], [3]]
    """
    shards: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        if max_bytes is not None and shards[-1] and total + size > max_bytes:
            shards.append([])
            total = 0
        shards[-1].append(number)
        total += size
    return shards


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


_Item: TypeAlias = tuple[int, int, int, int]  # group, start, stop, size of the cell
_Outline: TypeAlias = tuple[tuple[_Item, ...], ...]  # the items of each run
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
    items: dict[tuple[bool, tuple[bool, int], int], list[_Item]] = {}
    for number, cell, start, stop, replicated in ranges:
        group = groups[number]
        size = group.cell_bytes[cell]
        key = (replicated, data_order(size, group.itemsize), cell)
        items.setdefault(key, []).append((number, start, stop, size))
    keys = sorted(items)
    outline = tuple([tuple(items[key]) for key in keys])
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
    outline: Sequence[tuple[int, Sequence[_Item]]],
    limit: int,
    start_bins: Sequence[_Bin],
) -> list[_Bin]:
    """Put runs into bins of at most `limit` bytes; the last bin of `start_bins` is filled first."""
    bins = list(start_bins)
    runs, total = bins.pop() if bins else _Bin((), 0)
    for run, items in outline:
        leaves: list[int] = []
        sizes = [
            [(leaf, size) for leaf in groups[number].leaves[start:stop]]
            for number, start, stop, size in items
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


# Hard links

MAX_BYTES_PER_LIVE_BYTE = 2  # a linked file has at least one byte of the tree in that many
MAX_POOLED_BYTES_PER_LIVE_BYTE = 64  # in a store: what is sent again is at most 1/64 of a file
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
    runs: list[tuple[int, list[int]]] = []  # a cell and its leaves, or UNUSED and the sizes
    kept = frozenset(same)
    for i, (leaf, cell, _, length) in enumerate(cells):
        number, item = (cell, leaf) if i in kept else (UNUSED, length)
        if number == UNUSED and not length:
            continue
        if runs and runs[-1][0] == number and (number == UNUSED or item > runs[-1][1][-1]):
            runs[-1][1].append(item)
        else:
            runs.append((number, [item]))
    return tuple(
        [
            Gap(sum(items)) if number == UNUSED else PackPart(tuple(items), number)
            for number, items in runs
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
        for kept, run in groupby([((leaf, each.cell) in chosen) == keep for leaf in leaves]):
            stop = start + len(list(run))
            if kept:
                result.append(each._replace(start=start, stop=stop))
            start = stop
    return tuple(result)
