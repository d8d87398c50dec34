"""Arranged leaves: any box of them, of sources that are stored in any pieces, is numpy's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from cordwood.formats.format_protocol import Opened
from cordwood.index import LEAF, Arranged, ArrangedPart, Box, Index, Leaf, Piece, Pieces, Source
from cordwood.io.memory_file import MemoryFile
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.arrangements import split_axes, transposed_leaf
from cordwood.sharding.boxes import grid_cells, slices, whole_box


def stored_in_boxes(array: np.ndarray, boxes: Sequence[Box]) -> tuple[Leaf, bytes]:
    """Return a leaf that is stored as these boxes, and the bytes of its file."""
    data, pieces = b"", []
    for box in boxes:
        part = np.ascontiguousarray(array[slices(box)]).tobytes()
        pieces.append(Piece(box, 0, len(data), len(part)))
        data += part
    leaf = Leaf(("w",), "numpy", array.shape, "float32", Pieces(tuple(pieces)))
    return leaf, data


def reader_of(leaf: Leaf, data: bytes) -> LeafReader:
    index = Index("test", (LEAF,), (leaf,), (Source("file", len(data)),))
    return LeafReader("file", Opened("test", index, (MemoryFile(data, "file"),)))


@pytest.mark.parametrize("seed", range(40))
def test_any_box_of_sources_in_any_boxes(seed: int) -> None:
    """The cuts of the source run through the parts of its axes, which are rearranged."""
    rng = random.Random(seed)
    split = (rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4))
    shape = (split[0] * split[1], split[2] * split[3])
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    cuts = [sorted({0, *[rng.randrange(size) for _ in range(2)]}) for size in shape]
    leaf, data = stored_in_boxes(array, grid_cells(shape, cuts))
    order = rng.sample(range(4), 4)
    axes = tuple([order.index(axis) for axis in range(4)])
    new_split = tuple([split[axis] for axis in order])
    new_shape = (new_split[0], new_split[1] * new_split[2], new_split[3])
    part = ArrangedPart(leaf, split, (0,) * 4, axes, whole_box(new_split))
    arranged = Leaf(("v",), "numpy", new_shape, "float32", Arranged(new_split, (part,)))
    expected = array.reshape(split).transpose(order).reshape(new_shape)
    starts = [[rng.randrange(size) for size in new_shape] for _ in range(3)]
    boxes = [
        Box(
            tuple(start),
            tuple([rng.randint(a + 1, n) for a, n in zip(start, new_shape, strict=True)]),
        )
        for start in starts
    ]
    arrays = reader_of(leaf, data).read([arranged], {0: boxes})
    for box, result in zip(boxes, arrays, strict=True):
        np.testing.assert_array_equal(result, expected[slices(box)])


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_a_leaf_transposed_twice_is_numpys(axes: tuple[int, ...]) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    leaf, data = stored_in_boxes(array, [whole_box(array.shape)])
    twice = transposed_leaf(transposed_leaf(leaf, (2, 0, 1)), axes)
    (result,) = reader_of(leaf, data).read([twice])
    np.testing.assert_array_equal(result, array.transpose(2, 0, 1).transpose(axes))


def test_a_leaf_without_elements_is_transposed() -> None:
    leaf, data = stored_in_boxes(np.zeros((0, 3), np.float32), [])
    (result,) = reader_of(leaf, data).read([transposed_leaf(leaf, (1, 0))])
    assert result.shape == (3, 0)


def test_axes_of_one_index_belong_to_any_axis() -> None:
    assert split_axes((1, 6), (1, 2, 1, 3)) == [range(1), range(1, 4)]
    assert split_axes((2, 1, 3), (2, 3)) == [range(1), range(1, 1), range(1, 2)]
