"""Who writes which part of which leaf, over all processes. Pure.

Every process computes the same answer from the shardings, which jax keeps global. Leaves of equal
shape, item size and sharding are planned once, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from cordwood.sharding.boxes import Cuts
from cordwood.sharding.shard_grid import ShardGrid

MIN_PART_BYTES = 1 << 20  # a smaller part of a cell is not worth a tensor of its own
_SLACK = 50  # one part in that many more than its even share is what a process may write
_EVEN = 20  # rows a part: that one part has a row more than another is then within 5 %


class FileSizes(NamedTuple):
    """How large the files of a process should be."""

    pack_bytes: int  # about; a cell is never in two
    max_packs: int  # where more would be needed, each is larger
    part_bytes: int | None  # a cell of more is cut, where an axis allows it; None: never


class ShardedLeaf(NamedTuple):
    """A leaf whose elements go into packs."""

    leaf: int  # its position in the tree
    itemsize: int
    shards: ShardGrid


class LeafGroup(NamedTuple):
    """Leaves that are cut alike and held alike."""

    leaves: tuple[int, ...]  # ascending
    shape: tuple[int, ...]
    itemsize: int
    cuts: Cuts
    cell_bytes: tuple[int, ...]  # of each cell, in C order


class CellRange(NamedTuple):
    """One cell of the leaves [start, stop) of a group: what one process writes."""

    group: int
    cell: int
    start: int
    stop: int
    replicated: bool  # other processes hold it too, and any of them could have written it


class CellAssignment(NamedTuple):
    """What every process writes."""

    groups: tuple[LeafGroup, ...]
    by_process: tuple[tuple[CellRange, ...], ...]
    bytes_by_process: tuple[int, ...]
    sizes: FileSizes


def assign_cells(
    stored: Sequence[ShardedLeaf], *, process_count: int, sizes: FileSizes
) -> CellAssignment:
    """Share the cells of all leaves out among the processes that hold them.

    A cell that several processes hold is cut among them where each part has MIN_SHARE_BYTES;
    otherwise it goes whole to the first of them whose share it leaves about even, or to whichever
    has the least. So the many small leaves that every process needs when they are loaded lie in
    a few files, and not in one of each process.

    Raises ValueError for a holder that is not below `process_count`.
    """
    groups: list[LeafGroup] = []
    choices: list[tuple[int, int, int, tuple[int, ...]]] = []  # bytes, group, cell, holders
    shares: list[list[CellRange]] = [[] for _ in range(process_count)]
    loads = [0] * process_count
    for leaves, itemsize, shards in _grouped(stored):
        cuts, parts, axis, owners = _cut(shards, itemsize, sizes.part_bytes)
        cell_bytes = _cell_sizes(shards.shape, cuts, itemsize)
        number, count = len(groups), len(leaves)
        groups.append(LeafGroup(leaves, shards.shape, itemsize, cuts, tuple(cell_bytes)))
        for cell, (holders, part) in enumerate(_holders(shards, parts, axis)):
            if max(holders) >= process_count:
                raise ValueError(f"process {max(holders)} holds a shard of {process_count}")
            if len(holders) == owners:
                process = holders[part * owners // parts]
                shares[process].append(CellRange(number, cell, 0, count, False))
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
                shares[process].append(CellRange(number, cell, start, start + count, True))
                loads[process] -= size * count
                start += count
    return CellAssignment(tuple(groups), tuple(map(tuple, shares)), tuple(loads), sizes)


def _grouped(stored: Iterable[ShardedLeaf]) -> Iterator[tuple[tuple[int, ...], int, ShardGrid]]:
    """Leaves of equal item size and shards; a map is hashed once, however many leaves share it."""
    by_identity: dict[tuple[int, int], tuple[list[int], ShardGrid]] = {}
    for leaf, itemsize, shards in stored:
        by_identity.setdefault((itemsize, id(shards)), ([], shards))[0].append(leaf)
    groups: dict[tuple[int, ShardGrid], list[int]] = {}
    for (itemsize, _), (leaves, shards) in by_identity.items():
        groups.setdefault((itemsize, shards), []).extend(leaves)
    for (itemsize, shards), leaves in groups.items():
        yield tuple(sorted(leaves)), itemsize, shards


def _cut(shards: ShardGrid, itemsize: int, part_bytes: int | None) -> tuple[Cuts, int, int, int]:
    """How a group is cut: the cuts, into how many parts each cell is cut more, along which axis,
    and among how many holders these are shared."""
    cuts = shards.cuts
    widths = [_widths(starts, size) for starts, size in zip(cuts, shards.shape, strict=True)]
    room = [min(axis) for axis in widths]
    owners = max(1, min(min(map(len, shards.holders)), prod(room) * itemsize // MIN_PART_BYTES))
    wanted = owners
    if part_bytes is not None:
        largest = prod([max(axis) for axis in widths]) * itemsize
        wanted = owners * max(1, -(-largest // (owners * part_bytes)))
    if wanted < 2 or not room:
        return cuts, 1, 0, 1
    even = [n for n, axis in enumerate(widths) if _divides(axis, wanted)]
    axis = even[0] if even else max(range(len(room)), key=lambda n: (room[n], -n))
    parts = min(wanted, room[axis])
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
    """Whether that many parts are of about one size."""
    return all(width >= _EVEN * parts or width % parts == 0 for width in widths)


def _widths(starts: Sequence[int], size: int) -> list[int]:
    return [b - a for a, b in zip(starts, (*starts[1:], size), strict=True)]


def _cell_sizes(shape: Sequence[int], cuts: Cuts, itemsize: int) -> list[int]:
    widths = [_widths(starts, size) for starts, size in zip(cuts, shape, strict=True)]
    return [prod(cell) * itemsize for cell in product(*widths)]


def _holders(shards: ShardGrid, parts: int, axis: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """For each cell of the finer grid: who holds it, and which part of its shard it is."""
    counts = [len(starts) for starts in shards.cuts]
    inner = prod(counts[axis + 1 :])  # shards that follow one another along the later axes
    for row in range(0, len(shards.holders), inner):
        for part in range(parts):
            for holders in shards.holders[row : row + inner]:
                yield holders, part


def _deal(loads: Sequence[int], size: int, count: int, most: int) -> list[int]:
    """How many of `count` items of one size each holder gets: as many as leave it within `most`,
    the first ones first, and the rest so that the loads end up level."""
    given = []
    for load in loads:
        fit = min(count, max(0, most - load) // size) if size else count
        given.append(fit)
        count -= fit
    rest = _fill([load + n * size for load, n in zip(loads, given, strict=True)], size, count)
    return list(map(int.__add__, given, rest))


def _fill(loads: Sequence[int], size: int, count: int) -> list[int]:
    """How many of `count` items of one size each holder gets, so that the loads end up level."""
    given = [0] * len(loads)
    if len(loads) == 1 or not size:
        given[0] = count
        return given
    order = sorted(range(len(loads)), key=lambda i: (loads[i], i))
    total = count * size
    used = 1  # how many of the least loaded come in: those below the level that results
    total += loads[order[0]]
    while used < len(order) and loads[order[used]] * used < total:
        total += loads[order[used]]
        used += 1
    level = total // used
    for i in order[:used]:
        given[i] = (level - loads[i]) // size
    rest = count - sum(given)
    for i in sorted(order[:used], key=lambda i: (loads[i] + given[i] * size, i))[:rest]:
        given[i] += 1
    return given


def cell_bytes_of_leaves(shares: CellAssignment, process: int, leaf_count: int) -> list[int]:
    """How many bytes of each leaf a process writes."""
    sizes = [0] * leaf_count
    for number, cell, start, stop, _ in shares.by_process[process]:
        group = shares.groups[number]
        for leaf in group.leaves[start:stop]:
            sizes[leaf] += group.cell_bytes[cell]
    return sizes
