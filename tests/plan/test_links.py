"""Files that are worth a link, their index entries, and the cells that remain to be written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.plan.cells import FileSizes, ShardedLeaf, assign_cells, cells_of_process
from cordwood.plan.links import (
    MAX_BYTES_PER_LIVE_BYTE,
    MIN_UNCHANGED_BYTES,
    StoredCell,
    comparison_order,
    linked_parts,
    select_cells,
    should_link,
    should_separate_unchanged,
)
from cordwood.plan.packs import Gap, PackPart, packs_of_ranges
from cordwood.sharding.boxes import ShardGrid, single_process_grid

SIZES = FileSizes(pack_bytes=1 << 30, max_packs=16, part_bytes=None)


def laid_out(cells: Sequence[tuple[int | None, int, int]], start: int = 100) -> list[StoredCell]:
    """Cells of (leaf, cell, length), one after another."""
    laid = []
    for leaf, cell, length in cells:
        laid.append(StoredCell(leaf, cell, start, length))
        start += length
    return laid


@pytest.mark.parametrize(
    ("lengths", "same", "worth"),
    [
        ([8, 8], [0], True),
        ([8, 9], [0], False),
        ([8, 9], [1], True),
        ([8, 9], [], False),
        ([0, 0], [0, 1], False),
        ([], [], False),
    ],
)
def test_half_of_a_linked_file_is_of_the_tree(
    lengths: list[int], same: list[int], worth: bool
) -> None:
    assert MAX_BYTES_PER_LIVE_BYTE == 2
    cells = laid_out([(i, 0, length) for i, length in enumerate(lengths)])
    assert should_link(cells, same) is worth


def test_few_bytes_are_not_worth_a_file() -> None:
    assert not should_separate_unchanged([MIN_UNCHANGED_BYTES - 1])
    assert should_separate_unchanged([MIN_UNCHANGED_BYTES - 1, 1])


def test_the_parts_of_a_linked_file() -> None:
    cells = laid_out(
        [(2, 0, 8), (5, 0, 8), (4, 0, 8), (7, 1, 4), (9, 1, 4), (None, 0, 6), (10, 1, 2)]
    )
    whole = linked_parts(cells, [0, 1, 2, 3, 4, 6])
    assert whole == (
        PackPart((2, 5), 0),
        PackPart((4,), 0),
        PackPart((7, 9), 1),
        Gap(6),
        PackPart((10,), 1),
    )
    assert linked_parts(cells, [1, 4]) == (
        Gap(8),
        PackPart((5,), 0),
        Gap(12),
        PackPart((9,), 1),
        Gap(8),
    )
    empty = laid_out([(0, 0, 8), (1, 0, 0), (2, 0, 8)])
    assert linked_parts(empty, [0, 2]) == (PackPart((0, 2), 0),)
    assert linked_parts(empty, [1]) == (Gap(8), PackPart((1,), 0), Gap(8))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 9))),
    st.randoms(use_true_random=False),
)
def test_parts_say_all_and_no_more(cells: list[tuple[int, int, int]], rng: random.Random) -> None:
    stored = laid_out(cells)
    same = [i for i in range(len(stored)) if rng.random() < 0.6]
    parts = linked_parts(stored, same)
    lengths = iter([stored[i] for i in same])
    at = 100
    listed = []
    for part in parts:
        if isinstance(part, Gap):
            assert part.size_bytes > 0
            at += part.size_bytes
            continue
        assert list(part.leaves) == sorted(set(part.leaves))
        for leaf in part.leaves:
            cell = next(lengths)
            listed.append(StoredCell(leaf, part.cell, at, cell.length))
            at += cell.length
    # An empty cell may stand anywhere between the bytes around it.
    assert [cell for cell in listed if cell.length] == [stored[i] for i in same if stored[i].length]
    assert [cell[:2] for cell in listed] == [stored[i][:2] for i in same]
    assert at == 100 + sum(cell.length for cell in stored)
    kinds = [type(part) for part in parts]
    assert (Gap, Gap) not in set(pairwise(kinds))


@given(st.lists(st.tuples(st.integers(-1, 300), st.integers(0, 1 << 20)), max_size=300))
def test_every_cell_but_the_smallest_is_looked_at_once(leaves: list[tuple[int, int]]) -> None:
    cells = laid_out([(leaf, 0, length) for leaf, length in leaves])
    sample, rest = comparison_order(cells)
    ours = {i for i, cell in enumerate(cells) if cell.leaf is not None and cell.length}
    seen = {*sample, *rest}
    assert len(sample) + len(rest) == len(seen)
    assert seen <= ours
    assert len(sample) <= 64
    assert bool(sample) == bool(ours)
    unseen = [cells[i].length for i in ours - seen]
    assert sum(unseen) * 64 <= sum(cell.length for cell in cells)
    if unseen:
        assert max(unseen) <= min(cells[i].length for i in seen)


def test_a_sample_is_of_all_sizes() -> None:
    cells = laid_out([(i, 0, 1000 - i) for i in range(640)])
    sample, rest = comparison_order(cells)
    assert sample[:3] == [0, 10, 20]
    assert rest[:3] == [1, 2, 3]


@given(st.data())
def test_what_is_left_to_write(data: st.DataObject) -> None:
    halves = ShardGrid((8,), ((0, 4),), ((0, 1), (1,)))
    maps = [single_process_grid((3,)), single_process_grid(()), halves]
    picks = data.draw(st.lists(st.sampled_from(maps), min_size=1, max_size=12))
    stored = [ShardedLeaf(3 * i, 4, each) for i, each in enumerate(picks)]
    shares = assign_cells(stored, process_count=2, sizes=SIZES)
    for process in (0, 1):
        process_cells = cells_of_process(shares, process)
        linked = (
            data.draw(st.sets(st.sampled_from(sorted(process_cells)))) if process_cells else set()
        )
        mine = shares.by_process[process]
        for taken, expected in (
            (select_cells(shares, mine, linked, keep=False), process_cells - linked),
            (select_cells(shares, mine, linked, keep=True), linked),
        ):
            cells = [
                (leaf, part.cell)
                for pack in packs_of_ranges(shares, taken)
                for part in pack.parts
                for leaf in part.leaves
            ]
            assert sorted(cells) == sorted(expected)
        assert select_cells(shares, mine, (), keep=False) == mine
        assert select_cells(shares, mine, (), keep=True) == ()
