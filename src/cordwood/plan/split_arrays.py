"""Division of arrays into parts of a few MiB to read: all parts, or those of a sample. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood.index import Box, Encoded, Leaf
from cordwood.sharding.boxes import cell_box, grid_cells, shape_of, whole_box

WINDOW_BYTES = 16 << 20  # that are read at a time, of an array that is read from start to end
_MAX_ROWS_FACTOR = 4  # parts of whole rows may be this much larger than the limit

_SAMPLE_BYTES = 4 << 20  # of one array
_SAMPLE_BLOCKS = 16
_COARSE_PARTS = 1024  # into which a large array is cut before blocks of a sample are chosen


class Part(NamedTuple):
    """A box of a leaf to read."""

    number: int  # the position of the leaf in its tree; in a comparison, in the first
    box: Box
    size_bytes: int
    divisible: bool = True  # False for chunks that are decoded whole


def split_array(
    shape: Sequence[int], *, item_bytes: int, limit_bytes: int, rows: int = 1
) -> Iterator[Box]:
    """Yield boxes that make up an array, in C order, each contiguous in it.

    Args:
        shape: the shape of the array.
        item_bytes: the size of an element.
        limit_bytes: the limit for a box, if one element, or `rows` of the first axis, fit in it.
        rows: the first axis is cut only at multiples of this, for arrays stored as chunks.

    >>> [box.start for box in split_array((4, 3), item_bytes=1, limit_bytes=6)]
    [(0, 0), (2, 0)]
    """
    if 0 in shape:
        return
    stack = [whole_box(shape)]
    while stack:
        box = stack.pop()
        sizes = shape_of(box)
        if math.prod(sizes) * item_bytes <= limit_bytes or all(size == 1 for size in sizes):
            yield box
            continue
        axis = next(i for i, size in enumerate(sizes) if size > 1)
        step = max(1, limit_bytes // (math.prod(sizes[axis + 1 :]) * item_bytes))
        if axis == 0:
            step = max(rows, step // rows * rows)
            if step >= sizes[0]:
                yield box
                continue
        parts = []
        for start in range(box.start[axis], box.stop[axis], step):
            stop = min(start + step, box.stop[axis])
            low, high = list(box.start), list(box.stop)
            low[axis], high[axis] = start, stop
            parts.append(Box(tuple(low), tuple(high)))
        if step == 1:
            stack.extend(reversed(parts))
        else:
            yield from parts


def element_range(box: Box, shape: Sequence[int]) -> tuple[int, int]:
    """Return start and stop of a contiguous box among the elements of an array in C order."""
    start = 0
    for low, size in zip(box.start, shape, strict=True):
        start = start * size + low
    return start, start + math.prod(shape_of(box))


def group_parts(parts: Iterable[Part], limit_bytes: int) -> Iterator[list[Part]]:
    """Yield consecutive parts in groups up to a limit, of at least one part each."""
    group: list[Part] = []
    total = 0
    for part in parts:
        if group and total + part.size_bytes > limit_bytes:
            yield group
            group, total = [], 0
        group.append(part)
        total += part.size_bytes
    if group:
        yield group


def chunks_of(*leaves: Leaf | None) -> Sequence[int]:
    """Return the shape of the chunks of the first leaf that has some; () if none has.

    Chunks are decoded whole, so that arrays are cut at their borders.
    """
    shapes = [
        leaf.storage.chunk_shape for leaf in leaves if leaf and isinstance(leaf.storage, Encoded)
    ]
    return next(filter(None, shapes), ())


def chunk_rows(*leaves: Leaf | None) -> int:
    """Return the number of rows of such a chunk; 1 if there are no chunks."""
    return (chunks_of(*leaves) or (1,))[0]


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
    yield from grid_cells(shape, _chunk_cuts(shape, steps))


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
        cuts = _chunk_cuts(shape, chunk_shape)
        fitting = max(1, _SAMPLE_BYTES // (math.prod(chunk_shape) * item_bytes))
        numbers = _spread(math.prod(map(len, cuts)), min(fitting, _SAMPLE_BLOCKS))
        return [cell_box(shape, cuts, number) for number in numbers]
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


def _chunk_cuts(shape: Sequence[int], steps: Sequence[int]) -> list[range]:
    return [range(0, size, step) for size, step in zip(shape, steps, strict=True)]


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
