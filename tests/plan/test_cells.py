"""Assignment of cells to processes and files: each cell once, by a holder, with even loads."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.plan import cells
from cordwood.plan.cells import MIN_PART_BYTES, CellAssignment, FileSizes, ShardedLeaf
from cordwood.plan.packs import Pack, data_order, packs_of_all, packs_of_process
from cordwood.sharding.boxes import ShardGrid, element_count, grid_cells, single_process_grid

MIB = 1 << 20
SIZES = FileSizes(pack_bytes=1 << 30, max_packs=16, part_bytes=None)


def share_out(
    stored: list[ShardedLeaf], *, process_count: int, sizes: FileSizes = SIZES
) -> CellAssignment:
    return cells.assign_cells(stored, process_count=process_count, sizes=sizes)


def spread(shape: tuple[int, ...], counts: tuple[int, ...], copies: int = 1) -> ShardGrid:
    """Return the grid of an evenly cut array; `copies` consecutive processes hold each cell."""
    cuts = tuple(
        tuple(i * size // count for i in range(count))
        for size, count in zip(shape, counts, strict=True)
    )
    holders = tuple(tuple(range(i * copies, (i + 1) * copies)) for i in range(prod(counts)))
    return ShardGrid(shape, cuts, holders)


def written(shares: CellAssignment) -> Counter[tuple[int, int]]:
    """Count the writes of each (leaf, cell)."""
    return Counter(
        (leaf, share.cell)
        for ranges in shares.by_process
        for share in ranges
        for leaf in shares.groups[share.group].leaves[share.start : share.stop]
    )


def all_cells(shares: CellAssignment) -> Counter[tuple[int, int]]:
    return Counter(
        (leaf, cell)
        for group in shares.groups
        for leaf in group.leaves
        for cell in range(len(group.cell_bytes))
    )


def test_one_process_writes_all_of_it_whole() -> None:
    stored = [ShardedLeaf(i, 4, single_process_grid((1000, i))) for i in range(5)]
    shares = share_out(stored, process_count=1)
    assert [group.cuts for group in shares.groups] == [((0,), (0,))] * 5
    assert shares.bytes_by_process == (40_000,)
    (pack,) = packs_of_process(shares, 0)
    # 0 bytes and multiples of 64 first: only the tree's order is left to decide.
    assert [(part.leaves, part.cell) for part in pack.parts] == [((0, 2, 4), 0), ((1, 3), 0)]


def test_shards_of_one_process_stay_as_they_are() -> None:
    stored = [ShardedLeaf(0, 4, ShardGrid((8, 4), ((0, 4), (0, 2)), ((0,),) * 4))]
    shares = share_out(stored, process_count=1)
    (group,) = shares.groups
    assert group.cuts == ((0, 4), (0, 2))
    assert group.cell_bytes == (32,) * 4
    assert written(shares) == all_cells(shares)


def test_a_large_replicated_leaf_is_cut_among_its_holders() -> None:
    shares = share_out([ShardedLeaf(0, 4, spread((4096, 1024), (1, 1), 4))], process_count=4)
    (group,) = shares.groups
    assert group.cuts == ((0, 1024, 2048, 3072), (0,))
    assert [[share.cell for share in ranges] for ranges in shares.by_process] == [
        [0],
        [1],
        [2],
        [3],
    ]
    assert shares.bytes_by_process == (4 * MIB,) * 4


def test_cuts_need_not_be_even() -> None:
    (group,) = share_out(
        [ShardedLeaf(0, 2, spread((16032, 8), (1, 1), 128))], process_count=128
    ).groups
    assert group.cuts == ((0,), (0,))  # 2 KB a process: not worth it
    (group,) = share_out(
        [ShardedLeaf(0, 2, spread((16033, 8192), (1, 1), 128))], process_count=128
    ).groups
    widths = {b - a for a, b in zip(group.cuts[0], (*group.cuts[0][1:], 16033), strict=True)}
    assert widths == {125, 126}


def test_a_later_axis_is_cut_where_the_first_is_too_short() -> None:
    (group,) = share_out(
        [ShardedLeaf(0, 4, spread((3, 4 * MIB), (1, 1), 4))], process_count=4
    ).groups
    assert group.cuts == ((0,), (0, MIB, 2 * MIB, 3 * MIB))


def test_shards_are_cut_within_the_grid() -> None:
    shares = share_out([ShardedLeaf(0, 4, spread((2, 2048, 1024), (1, 1, 2), 2))], process_count=4)
    (group,) = shares.groups
    assert group.cuts == ((0, 1), (0,), (0, 512))
    # Cell (0, 0, 0) is the first half of the shard of processes 0 and 1.
    assert [[share.cell for share in ranges] for ranges in shares.by_process] == [
        [0],
        [2],
        [1],
        [3],
    ]


def test_small_replicated_leaves_are_dealt_out_whole() -> None:
    stored = [ShardedLeaf(i, 4, spread((1000,), (1,), 4)) for i in range(10)]
    shares = share_out(stored, process_count=4)
    assert sorted(shares.bytes_by_process) == [8000, 8000, 12000, 12000]
    assert written(shares) == all_cells(shares)
    assert all(share.replicated for ranges in shares.by_process for share in ranges)


def test_the_process_with_the_least_gets_what_remains() -> None:
    large = ShardedLeaf(0, 1, single_process_grid((900,)))
    small = [ShardedLeaf(1 + i, 1, spread((100,), (1,), 2)) for i in range(11)]
    shares = share_out([large, *small], process_count=2)
    assert shares.bytes_by_process == (1000, 1000)


def test_small_leaves_that_all_hold_lie_in_few_files() -> None:
    large = [ShardedLeaf(0, 4, spread((64, 4 * MIB), (64, 1)))]
    small = [ShardedLeaf(1 + i, 4, spread((1000,), (1,), 64)) for i in range(60)]
    shares = share_out([*large, *small], process_count=64)
    assert [len(shares) for shares in shares.by_process] == [2] + [1] * 63
    assert shares.bytes_by_process[0] < 1.02 * shares.bytes_by_process[1]


def test_small_leaves_are_dealt_on_once_a_share_is_full() -> None:
    small = [ShardedLeaf(i, 4, spread((1000,), (1,), 8)) for i in range(802)]
    shares = share_out(small, process_count=8)
    assert shares.bytes_by_process == (102 * 4000,) * 7 + (88 * 4000,)


def test_a_holder_beyond_the_processes_is_an_error() -> None:
    with pytest.raises(ValueError, match="process 3 holds a shard"):
        share_out([ShardedLeaf(0, 4, single_process_grid((4,), 3))], process_count=2)


def test_packs_are_of_about_one_gib() -> None:
    stored = [ShardedLeaf(i, 4, single_process_grid((100 * MIB,))) for i in range(7)]
    packs = packs_of_process(share_out(stored, process_count=1), 0)
    assert [pack.data_bytes // MIB for pack in packs] == [800, 800, 800, 400]
    assert [part.leaves for pack in packs for part in pack.parts] == [(0, 1), (2, 3), (4, 5), (6,)]


def test_at_most_sixteen_packs() -> None:
    stored = [ShardedLeaf(i, 4, single_process_grid((150 * MIB,))) for i in range(40)]
    packs = packs_of_process(share_out(stored, process_count=1), 0)
    assert len(packs) == 14
    assert [pack.data_bytes // MIB for pack in packs] == [1800] * 13 + [600]
    assert [leaf for pack in packs for part in pack.parts for leaf in part.leaves] == [*range(40)]


def test_large_cells_are_cut_where_files_are_to_be_small() -> None:
    small = FileSizes(pack_bytes=64 * MIB, max_packs=512, part_bytes=256 * MIB)
    stored = [
        ShardedLeaf(0, 4, single_process_grid((1000, MIB))),
        ShardedLeaf(1, 4, single_process_grid((64, MIB))),
    ]
    shares = share_out(stored, process_count=1, sizes=small)
    large, whole = shares.groups
    assert len(large.cell_bytes) == 16
    assert max(large.cell_bytes) <= 256 * MIB
    assert whole.cell_bytes == (256 * MIB,)
    assert written(shares) == all_cells(shares)
    packs = packs_of_process(shares, 0)
    assert [len(pack.parts) for pack in packs] == [1] * 17


def test_large_cells_of_several_holders_are_cut_and_shared() -> None:
    small = FileSizes(pack_bytes=MIB, max_packs=512, part_bytes=2 * MIB)
    shares = share_out(
        [ShardedLeaf(0, 4, spread((4096, 1024), (1, 1), 2))], process_count=2, sizes=small
    )
    assert [[share.cell for share in files] for files in shares.by_process] == [
        [*range(4)],
        [4, 5, 6, 7],
    ]
    assert shares.groups[0].cell_bytes == (2 * MIB,) * 8


def test_a_cell_is_cut_no_further_than_its_longest_axis() -> None:
    small = FileSizes(pack_bytes=8, max_packs=512, part_bytes=8)
    (group,) = share_out(
        [ShardedLeaf(0, 8, single_process_grid((3, 5)))], process_count=1, sizes=small
    ).groups
    assert group.cuts == ((0,), (0, 1, 2, 3, 4))
    (group,) = share_out(
        [ShardedLeaf(0, 8, single_process_grid(()))], process_count=1, sizes=small
    ).groups
    assert group.cell_bytes == (8,)


def test_no_leaves_no_packs() -> None:
    assert packs_of_process(share_out([], process_count=1), 0) == ()


_AXES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=3)


@st.composite
def shard_maps(draw: st.DrawFn, processes: int) -> ShardGrid:
    axes = draw(_AXES)
    shape = tuple(size for size, _ in axes)
    cuts = tuple(tuple(sorted({i * size // count for i in range(count)})) for size, count in axes)
    holders = st.sets(st.integers(0, processes - 1), min_size=1)
    grid = grid_cells(shape, cuts)
    return ShardGrid(shape, cuts, tuple(tuple(sorted(draw(holders))) for _ in grid))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[ShardedLeaf], int]:
    processes = draw(st.integers(1, 5))
    maps = draw(st.lists(shard_maps(processes), min_size=1, max_size=3))
    picks = draw(st.lists(st.tuples(st.sampled_from((1, 2, 8)), st.sampled_from(maps)), max_size=8))
    return [ShardedLeaf(10 + 3 * i, *pick) for i, pick in enumerate(picks)], processes


@given(
    cases(),
    st.sampled_from((4, 1 << 30)),
    st.sampled_from((40, 200, 1 << 30)),
    st.sampled_from((None, 8, 50)),
)
@settings(max_examples=300)
def test_every_cell_is_written_once_by_a_holder(
    case: tuple[list[ShardedLeaf], int], min_share: int, pack_bytes: int, part_bytes: int | None
) -> None:
    stored, processes = case
    sizes = FileSizes(pack_bytes, 16, part_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.plan.cells.MIN_PART_BYTES", min_share)
        shares = share_out(stored, process_count=processes, sizes=sizes)
        assert share_out(stored, process_count=processes, sizes=sizes) == shares
        packs = packs_of_all(shares)
        for process in range(processes):
            assert packs[process] == packs_of_process(shares, process)
    assert written(shares) == all_cells(shares)
    maps = {item.leaf: item for item in stored}
    assert sorted(maps) == sorted(leaf for group in shares.groups for leaf in group.leaves)
    for process, files in enumerate(packs):
        assert len(files) <= 16
        assert sum(pack.data_bytes for pack in files) == shares.bytes_by_process[process]
        for pack in files:
            check_pack(pack, shares, maps, process)
    entries = Counter(
        (leaf, part.cell)
        for files in packs
        for pack in files
        for part in pack.parts
        for leaf in part.leaves
    )
    assert entries == all_cells(shares)


def check_pack(
    pack: Pack, shares: CellAssignment, maps: dict[int, ShardedLeaf], process: int
) -> None:
    group_of = {leaf: group for group in shares.groups for leaf in group.leaves}
    order = []
    total = 0
    for part in pack.parts:
        assert list(part.leaves) == sorted(set(part.leaves))
        for leaf in part.leaves:
            group, (_, itemsize, shards) = group_of[leaf], maps[leaf]
            box = grid_cells(group.shape, group.cuts)[part.cell]
            assert group.cell_bytes[part.cell] == element_count(box) * itemsize
            (holders,) = [
                holders
                for holders, shard in zip(
                    shards.holders, grid_cells(shards.shape, shards.cuts), strict=True
                )
                if all(a <= b for a, b in zip(shard.start, box.start, strict=True))
                and all(a >= b for a, b in zip(shard.stop, box.stop, strict=True))
            ]
            assert process in holders
            order.append(data_order(group.cell_bytes[part.cell], itemsize))
            total += group.cell_bytes[part.cell]
    assert order == sorted(order)
    assert total == pack.data_bytes


def test_256_processes_get_balanced_cells() -> None:
    """256 processes, 30 layers, as a model with tensor and data parallelism would have them."""
    stored: list[ShardedLeaf] = []
    shards = [
        spread((8192, 8192), (64, 4)),
        spread((8192, 1024), (8, 4), 8),
        spread((8192, 28672), (8, 4), 8),
        spread((8192,), (1,), 256),
    ]
    for itemsize in (2, 4, 4):
        for _ in range(30):
            stored += [
                ShardedLeaf(len(stored) + i, itemsize, item) for i, item in enumerate(shards)
            ]
        stored.append(ShardedLeaf(len(stored), itemsize, spread((128256, 8192), (1, 4), 64)))
    sizes = SIZES._replace(pack_bytes=256 * MIB)
    shares = share_out(stored, process_count=256, sizes=sizes)
    assert written(shares) == all_cells(shares)
    loads = shares.bytes_by_process
    assert max(loads) <= 1.05 * sum(loads) / len(loads)
    assert min(loads) >= 0.95 * sum(loads) / len(loads)
    packs = packs_of_all(shares)
    assert {len(files) for files in packs} == {2}
    columns = {part.leaves for files in packs for pack in files for part in pack.parts}
    assert sum(map(len, columns)) < 6000  # of 256 processes that write 300 cells each
    smallest = min(size for group in shares.groups for size in group.cell_bytes if size > 8192 * 4)
    assert smallest >= MIN_PART_BYTES // 8
