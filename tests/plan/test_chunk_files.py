"""Assignment of chunk files: each is written once, by a holder, and the loads are even."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.formats.zarr.chunk_grid import chunk_shape, chunks
from cordwood.plan.cells import SMALL_BYTES, merge_small_shards
from cordwood.plan.chunk_files import assign_chunk_files, chunk_bytes_of_leaves
from cordwood.plan.file_plan import ChunkFile, PlannedFile, SmallFile
from cordwood.sharding.boxes import ShardGrid, element_count, grid_cells, intersect

MIB = 1 << 20


def spread(shape: tuple[int, ...], parts: tuple[int, ...], copies: int = 1) -> ShardGrid:
    """Return the grid of an array in equal parts, each held by `copies` consecutive processes."""
    cuts = tuple([tuple(range(0, size, size // n)) for size, n in zip(shape, parts, strict=True)])
    grid_cells = math.prod(parts)
    holders = [tuple(range(i * copies, (i + 1) * copies)) for i in range(grid_cells)]
    return ShardGrid(shape, cuts, tuple(holders))


def files_of(
    shards: Sequence[ShardGrid], *, itemsize: int = 4, max_bytes: int = 256 * MIB
) -> list[PlannedFile]:
    """Return the files of an item, as the plan of a save has them."""
    files: list[PlannedFile] = []
    for leaf, (shape, cuts, _) in enumerate(shards):
        extents = chunk_shape(shape, cuts, itemsize=itemsize, max_bytes=max_bytes)
        files.append(SmallFile(f"{leaf}/.zarray", b"{}"))
        files += [
            ChunkFile(f"{leaf}/{name}", leaf, box, extents, itemsize)
            for name, box in chunks(shape, extents, ".")
        ]
    return files


def loads(files: Sequence[PlannedFile], written_by: Sequence[int], count: int) -> list[int]:
    sizes = [0] * count
    for file, process in zip(files, written_by, strict=True):
        if isinstance(file, ChunkFile):
            sizes[process] += math.prod(file.shape) * file.itemsize
    return sizes


def holders_of(file: ChunkFile, shards: ShardGrid) -> tuple[int, ...]:
    (shard_holders,) = [
        holders
        for holders, cell in zip(shards.holders, grid_cells(shards.shape, shards.cuts), strict=True)
        if intersect(file.box, cell) == file.box
    ]
    return shard_holders


def test_small_arrays_are_not_cut() -> None:
    small = spread((8, 16), (4, 2), copies=1)
    assert merge_small_shards(small, 4) is small, "no process has all of it"
    alone = ShardGrid(small.shape, small.cuts, ((0,),) * 8)
    assert merge_small_shards(alone, 4) == ShardGrid((8, 16), ((0,), (0,)), ((0,),))
    assert merge_small_shards(alone, SMALL_BYTES) is alone
    shared = ShardGrid((8,), ((0, 4),), ((0, 1, 3), (1, 2, 3)))
    assert merge_small_shards(shared, 4).holders == ((1, 3),)


@st.composite
def maps(draw: st.DrawFn, processes: int) -> ShardGrid:
    parts = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4)), max_size=3)))
    shape = tuple([n * draw(st.integers(1, 6)) for n in parts])
    padded = draw(st.booleans())
    if shape and padded:
        parts, shape = (1, *parts[1:]), (draw(st.integers(0, 9)), *shape[1:])
    cuts = tuple(
        [
            tuple(range(0, size, size // n)) if n > 1 else (0,)
            for size, n in zip(shape, parts, strict=True)
        ]
    )
    each = st.sets(st.integers(0, processes - 1), min_size=1).map(
        lambda divided: tuple(sorted(divided))
    )
    holders = tuple([draw(each) for _ in product(*cuts)])
    return ShardGrid(shape, cuts, holders)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[ShardGrid], int]:
    processes = draw(st.integers(1, 6))
    return draw(st.lists(maps(processes), max_size=8)), processes


@given(cases(), st.sampled_from((16, 1 << 20)))
@settings(max_examples=300)
def test_every_chunk_is_written_once_by_a_holder(
    case: tuple[list[ShardGrid], int], max_bytes: int
) -> None:
    shards, count = case
    files = files_of(shards, max_bytes=max_bytes)
    writers = assign_chunk_files(files, shards, process_count=count)
    assert len(writers) == len(files)
    assert assign_chunk_files(files, list(shards), process_count=count) == writers
    largest = 0
    for file, process in zip(files, writers, strict=True):
        if isinstance(file, SmallFile):
            assert process == 0
        else:
            assert process in holders_of(file, shards[file.leaf])
            largest = max(largest, math.prod(file.shape) * file.itemsize)
    by_leaf = [
        chunk_bytes_of_leaves(files, writers, process, len(shards)) for process in range(count)
    ]
    elements = [element_count(file.box) for file in files if isinstance(file, ChunkFile)]
    assert sum(map(sum, by_leaf)) == 4 * sum(elements)
    everywhere = all(
        len(holders) == count for leaf in shards for holders in leaf.holders if leaf.shape
    )
    if everywhere and count > 1:
        sizes = loads(files, writers, count)
        assert max(sizes) - min(sizes) <= largest + 4 * len(shards)


def test_one_process_writes_all() -> None:
    files = files_of([spread((8, 4), (1, 1))])
    assert assign_chunk_files(files, [spread((8, 4), (1, 1))], process_count=1) == [0] * len(files)


def test_replicas_share_the_work() -> None:
    """16 processes: layers that every four hold alike, and many that all hold."""
    shards = [spread((4096, 1024), (4, 1), 4) for _ in range(24)]
    shards += [spread((512, 1024), (1, 1), 16) for _ in range(64)]
    files = files_of(shards)
    sizes = loads(files, assign_chunk_files(files, shards, process_count=16), 16)
    assert max(sizes) <= 1.05 * min(sizes)


def test_what_others_could_write_comes_last_and_the_largest_of_it_first() -> None:
    shards = [
        ShardGrid((512,), ((0,),), ((0, 1),)),
        ShardGrid((2048,), ((0,),), ((0, 1),)),
        ShardGrid((1024,), ((0,),), ((0,),)),
    ]
    files = files_of(shards)
    assert assign_chunk_files(files, shards, process_count=2) == [0, 0, 0, 1, 0, 0]
    assert chunk_bytes_of_leaves(files, [0, 0, 0, 1, 0, 0], 0, 3) == [2048, 0, 4096]


def test_a_holder_that_does_not_take_part() -> None:
    shards = [spread((8,), (4,))]
    with pytest.raises(ValueError, match="process 3 holds a shard of 3"):
        assign_chunk_files(files_of(shards), shards, process_count=3)
