"""Byte ranges of boxes, compared with sets of elements."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import LimitError
from cordwood.index import Box
from cordwood.plan.load_plan import (
    byte_ranges,
    byte_strides,
    contiguous_runs,
    flat_boxes,
    is_tiling,
)
from cordwood.sharding.boxes import grid_cells, shape_of, slices, whole_box

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@st.composite
def boxes_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple([a for a, _ in ends]), tuple([b for _, b in ends]))


def positions(shape: tuple[int, ...], box: Box) -> set[int]:
    """Return the flat indices of the elements of a box."""
    return set(np.arange(math.prod(shape)).reshape(shape)[slices(box)].reshape(-1).tolist())


@given(st.data(), SHAPES, st.integers(1, 3), st.integers(1, 50))
def test_ranges_are_the_cheapest(
    data: st.DataObject, shape: tuple[int, ...], item: int, gap: int
) -> None:
    boxes = data.draw(st.lists(boxes_of(shape), max_size=4))
    ranges = byte_ranges(shape, boxes, item_bytes=item, gap_bytes=gap)
    needed = sorted(set().union(*[positions(shape, box) for box in boxes]))
    expected: list[tuple[int, int]] = []
    for at in needed:  # greedily: every gap that costs less than a range is read
        if expected and at * item - expected[-1][1] < gap:
            expected[-1] = expected[-1][0], (at + 1) * item
        else:
            expected.append((at * item, (at + 1) * item))
    assert ranges == expected


def test_many_rows_are_one_range_or_many() -> None:
    columns = Box((0, 0), (1_000_000, 512))
    (one,) = byte_ranges((1_000_000, 1024), [columns], item_bytes=4, gap_bytes=4096)
    assert one == (0, 4 * (1_000_000 * 1024 - 512))
    half = Box((0, 0), (1000, 1 << 20))
    many = byte_ranges((1000, 1 << 21), [half], item_bytes=4, gap_bytes=1 << 20)
    assert many == [(i << 23, (i << 23) + (1 << 22)) for i in range(1000)]


@given(st.data(), SHAPES)
def test_a_flat_range_is_cut_into_few_boxes(data: st.DataObject, shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    boxes = list(flat_boxes(shape, start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    flat = np.arange(size).reshape(shape)
    elements = [int(x) for box in boxes for x in np.ravel(flat[slices(box)])]
    assert elements == list(range(start, stop))


@given(st.data(), SHAPES, st.integers(1, 3), st.integers(1, 20))
def test_contiguous_runs_cover_a_box(
    data: st.DataObject, shape: tuple[int, ...], item: int, least: int
) -> None:
    box = data.draw(boxes_of(shape).filter(lambda box: 0 not in shape_of(box)))
    extent = shape_of(box)
    steps, other = byte_strides(shape, item), byte_strides(extent, item)
    runs = contiguous_runs(extent, steps, other, item_bytes=item, least_bytes=least)
    moved = {}
    if runs is None:
        runs = contiguous_runs(extent, steps, other, item_bytes=item, least_bytes=0)
        assert runs is not None
        assert runs.length < least
        assert len(runs.starts) > 1
    for a, b in runs.starts:
        moved.update({b + i: a + i for i in range(runs.length)})
    expected = {}
    for index in product(*map(range, extent)):
        a = sum(i * step for i, step in zip(index, steps, strict=True))
        b = sum(i * step for i, step in zip(index, other, strict=True))
        expected.update({b + i: a + i for i in range(item)})
    assert moved == expected


@given(st.data(), SHAPES)
def test_cells_tile_and_others_do_not(data: st.DataObject, shape: tuple[int, ...]) -> None:
    cuts = tuple(tuple(sorted({0, data.draw(st.integers(0, n - 1))})) for n in shape)
    grid = grid_cells(shape, cuts)
    assert is_tiling(grid, whole_box(shape))
    boxes = data.draw(st.lists(boxes_of(shape), max_size=5))
    count = np.zeros(shape, int)
    for box in boxes:
        count[slices(box)] += 1
    assert is_tiling(boxes, whole_box(shape)) == bool((count == 1).all())


def test_overlaps_that_add_up_are_no_tiling() -> None:
    assert not is_tiling([Box((0,), (2,)), Box((1,), (3,))], Box((0,), (4,)))
    assert not is_tiling([Box((0, 0), (1, 2))] * 2, Box((0, 0), (2, 2)))


def test_parts_need_not_be_a_grid() -> None:
    pinwheel = [
        Box((0, 0), (1, 2)), Box((0, 2), (2, 3)), Box((1, 0), (3, 1)), Box((2, 1), (3, 3)),
        Box((1, 1), (2, 2)),
    ]  # fmt: skip
    assert is_tiling(pinwheel, whole_box((3, 3)))
    assert not is_tiling([*pinwheel[:-1], Box((0, 0), (1, 1))], whole_box((3, 3)))


def test_many_parts_take_no_time_or_are_refused() -> None:
    grid = grid_cells((2,) * 13, ((0, 1),) * 13)
    assert is_tiling(grid, whole_box((2,) * 13))
    parts = [Box((0,) * 13, (1,) * 13)] * 2**13
    with pytest.raises(LimitError, match="8192 parts that are no grid, along 13 axes"):
        is_tiling(parts, whole_box((2,) * 13))
