"""Boxes of an array that are read one after another: all of it, or a sample. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cordwood.index import Box
from cordwood.plan.split_arrays import split_array
from cordwood.sharding.boxes import grid_cells, shape_of, whole_box

_SAMPLE_BYTES = 4 << 20
_SAMPLE_BLOCKS = 16
_COARSE_PARTS = 1024  # into which a large array is cut before blocks of a sample are chosen
_MAX_ROWS_FACTOR = 4  # parts of whole rows may be this much larger than the limit


def all_boxes(
    shape: Sequence[int], *, item_bytes: int, limit_bytes: int, chunk_shape: Sequence[int] = ()
) -> Iterator[Box]:
    """Yield boxes that make up an array, of about the limit or one chunk each.

    The boxes are in C order and contiguous, unless whole rows of chunks are much larger than the
    limit.

    Args:
        shape: the shape of the array.
        item_bytes: the size of an element.
        limit_bytes: the limit for a box.
        chunk_shape: the shape of the chunks of the array, if they are read whole.
    """
    if 0 in shape:
        return
    rows = chunk_shape[0] if chunk_shape else 1
    rows_bytes = rows * math.prod(shape[1:]) * item_bytes
    if not chunk_shape or rows_bytes <= _MAX_ROWS_FACTOR * limit_bytes:
        yield from split_array(shape, item_bytes=item_bytes, limit_bytes=limit_bytes, rows=rows)
        return
    steps = list(chunk_shape)
    for axis in reversed(range(len(shape))):
        chunks = limit_bytes // (math.prod(steps) * item_bytes)
        steps[axis] = min(shape[axis], steps[axis] * max(1, chunks))
    cuts = tuple([tuple(range(0, size, step)) for size, step in zip(shape, steps, strict=True)])
    yield from grid_cells(shape, cuts)


def sample_boxes(
    shape: Sequence[int], *, item_bytes: int, chunk_shape: Sequence[int] = ()
) -> list[Box]:
    """Return up to 16 boxes spread over an array, together at most 4 MiB, or one chunk.

    A smaller array is returned whole.

    Args:
        shape: the shape of the array.
        item_bytes: the size of an element.
        chunk_shape: the shape of the chunks of the array, if they are read whole.

    >>> sample_boxes((2, 3), item_bytes=4)
    [Box(start=(0, 0), stop=(2, 3))]
    >>> boxes = sample_boxes((1 << 30,), item_bytes=4)
    >>> len(boxes), sum([box.stop[0] - box.start[0] for box in boxes]) * 4 >> 20
    (16, 4)
    """
    size_bytes = math.prod(shape) * item_bytes
    if size_bytes <= _SAMPLE_BYTES:
        return [whole_box(shape)]
    if chunk_shape:
        return _sample_chunks(shape, item_bytes, chunk_shape)
    block_bytes = _SAMPLE_BYTES // _SAMPLE_BLOCKS
    coarse_bytes = max(block_bytes, size_bytes // _COARSE_PARTS)
    coarse = list(split_array(shape, item_bytes=item_bytes, limit_bytes=coarse_bytes))
    return [
        first_block(coarse[i], item_bytes, block_bytes)
        for i in _spread(len(coarse), _SAMPLE_BLOCKS)
    ]


def first_block(box: Box, item_bytes: int, limit_bytes: int) -> Box:
    """Return the first part of a box, of at most `limit_bytes`."""
    first = next(split_array(shape_of(box), item_bytes=item_bytes, limit_bytes=limit_bytes))
    return Box(box.start, tuple(map(int.__add__, box.start, first.stop)))


def _sample_chunks(shape: Sequence[int], item_bytes: int, chunk_shape: Sequence[int]) -> list[Box]:
    counts = [-(-size // step) for size, step in zip(shape, chunk_shape, strict=True)]
    fitting = max(1, _SAMPLE_BYTES // (math.prod(chunk_shape) * item_bytes))
    boxes = []
    for number in _spread(math.prod(counts), min(fitting, _SAMPLE_BLOCKS)):
        start: list[int] = []
        for count, step in zip(reversed(counts), reversed(chunk_shape), strict=True):
            number, i = divmod(number, count)
            start.insert(0, i * step)
        stop = [min(a + b, n) for a, b, n in zip(start, chunk_shape, shape, strict=True)]
        boxes.append(Box(tuple(start), tuple(stop)))
    return boxes


def _spread(length: int, count: int) -> list[int]:
    """Return up to `count` positions in a sequence, evenly spread, first and last among them.

    >>> _spread(10, 4), _spread(2, 4), _spread(9, 1)
    ([0, 3, 6, 9], [0, 1], [4])
    """
    if count >= length:
        return list(range(length))
    if count == 1:
        return [length // 2]
    return [i * (length - 1) // (count - 1) for i in range(count)]
