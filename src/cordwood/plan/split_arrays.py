"""Division of arrays into parts of a few MiB, each contiguous in C order. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from cordwood.index import Box
from cordwood.sharding.boxes import shape_of, whole_box

T = TypeVar("T")


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


def group_parts(
    parts: Iterable[T], size_bytes: Callable[[T], int], *, limit_bytes: int
) -> Iterator[list[T]]:
    """Yield consecutive parts in groups up to a limit, of at least one part each.

    >>> list(group_parts([3, 4, 9, 1], int, limit_bytes=8))
    [[3, 4], [9], [1]]
    """
    group: list[T] = []
    total = 0
    for part in parts:
        size = size_bytes(part)
        if group and total + size > limit_bytes:
            yield group
            group, total = [], 0
        group.append(part)
        total += size
    if group:
        yield group
