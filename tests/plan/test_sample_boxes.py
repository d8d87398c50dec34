"""The boxes of an array that are read: all of it once, or a bounded sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cordwood.index import Box
from cordwood.plan.split_arrays import all_boxes, sample_boxes
from cordwood.sharding.boxes import shape_of, slices

MIB = 1 << 20


def covered(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    """Return how often each element of an array is in a box."""
    counts = np.zeros(shape, np.int64)
    for box in boxes:
        counts[slices(box)] += 1
    return counts


@pytest.mark.parametrize(
    ("shape", "chunk_shape"),
    [
        ((7, 5), ()),
        ((3, 4, 5), ()),
        ((6, 100), (6, 3)),
        ((5, 6, 7), (2, 5, 3)),
        ((100,), (7,)),
        ((), ()),
        ((0, 3), ()),
    ],
)
@pytest.mark.parametrize("limit", [1, 24, 10_000])
def test_all_boxes_hold_each_element_once(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], limit: int
) -> None:
    boxes = list(all_boxes(shape, item_bytes=4, limit_bytes=limit, chunk_shape=chunk_shape))
    assert (covered(shape, boxes) == 1).all()


def test_chunks_of_long_rows_are_not_read_by_whole_rows() -> None:
    boxes = list(
        all_boxes((1000, 1 << 20), item_bytes=4, limit_bytes=4 * MIB, chunk_shape=(1000, 100))
    )
    assert max(math.prod(shape_of(box)) * 4 for box in boxes) <= 4 * MIB
    assert all(box.start[1] % 100 == 0 for box in boxes)


@pytest.mark.parametrize(
    ("shape", "chunk_shape"),
    [
        ((1 << 40,), ()),
        ((1 << 20, 1 << 20), ()),
        ((3, 1 << 30), ()),
        ((1 << 30, 3), ()),
        ((50, 60, 70, 80), ()),
        ((1 << 20, 1 << 10), (256, 256)),
        ((1 << 20, 1 << 10), (1000, 1000)),
    ],
)
def test_a_sample_is_small_and_spread(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> None:
    boxes = sample_boxes(shape, item_bytes=4, chunk_shape=chunk_shape)
    assert 1 <= len(boxes) <= 16
    assert sum(math.prod(shape_of(box)) for box in boxes) * 4 <= 4 * MIB
    assert len(set(boxes)) == len(boxes)
    if len(boxes) > 1:
        assert boxes[0].start == (0,) * len(shape)
        assert boxes[-1].start[0] > shape[0] // 2
    for box in boxes:
        assert all(0 <= a < b <= n for a, b, n in zip(*box, shape, strict=True))


def test_a_sample_of_a_huge_chunk_is_that_chunk() -> None:
    boxes = sample_boxes((1 << 20, 4096), item_bytes=4, chunk_shape=(4096, 4096))
    assert [shape_of(box) for box in boxes] == [(4096, 4096)]


def test_a_small_array_is_read_whole() -> None:
    assert sample_boxes((1000, 1000), item_bytes=4) == [Box((0, 0), (1000, 1000))]
    assert sample_boxes((), item_bytes=8) == [Box((), ())]
