"""Boxes of an array, and the ranges of bytes that they are in C order. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from cordwood.errors import LimitError
from cordwood.index import Box
from cordwood.sharding.boxes import element_count, shape_of

Range: TypeAlias = tuple[int, int]  # start and stop, in bytes, from the start of the array

_MAX_CORNERS = 1 << 20


def byte_strides(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """How many bytes lie from one index to the next along each axis, in C order.

    >>> pitches((4, 3), 2)
    (6, 2)
    """
    found = []
    size = item_bytes
    for extent in reversed(shape):
        found.append(size)
        size *= extent
    return tuple(reversed(found))


class ContiguousRuns(NamedTuple):
    """A box that lies in two arrays, as runs of bytes that are unbroken in both."""

    length: int  # of each, in bytes
    starts: tuple[tuple[int, int], ...]  # of each, from where the box begins in the two


def contiguous_runs(
    extent: Sequence[int],
    steps: Sequence[int],
    other_steps: Sequence[int],
    *,
    item_bytes: int,
    least_bytes: int,
) -> ContiguousRuns | None:
    """The runs of a box in two arrays, if it is a single one or they are long.

    Args:
        extent: the shape of the box, no axis of it 0.
        steps: the bytes from one index to the next along each axis, in the one array.
        other_steps: the same in the other.
        item_bytes: the size of an element.
        least_bytes: how long a run must be where there are several.

    >>> runs((2, 3), (6, 2), (6, 2), item_bytes=2, least_bytes=100)
    Runs(length=12, starts=((0, 0),))
    >>> runs((2, 3), (8, 2), (6, 2), item_bytes=2, least_bytes=6)
    Runs(length=6, starts=((0, 0), (8, 6)))
    >>> runs((2, 3), (8, 2), (6, 2), item_bytes=2, least_bytes=7)
    """
    axis = len(extent)
    length = item_bytes
    while axis and (extent[axis - 1] == 1 or steps[axis - 1] == other_steps[axis - 1] == length):
        axis -= 1
        length *= extent[axis]
    outer = extent[:axis]
    if length < least_bytes and math.prod(outer) > 1:
        return None
    starts = [
        (sum(map(int.__mul__, index, steps)), sum(map(int.__mul__, index, other_steps)))
        for index in product(*map(range, outer))
    ]
    return ContiguousRuns(length, tuple(starts))


def byte_ranges(
    shape: Sequence[int], boxes: Sequence[Box], *, item_bytes: int, gap_bytes: int
) -> list[Range]:
    """The ranges of an array's bytes that hold some boxes of it, ascending.

    A gap shorter than `gap_bytes`, what another range costs, is read and not skipped: that
    decides how many of the leading axes the ranges loop over. So there are never more than one
    range for every `gap_bytes` of the array, and the cost is the least there is.

    >>> byte_ranges((4, 10), [Box((0, 2), (4, 5))], item_bytes=1, gap_bytes=7)
    [(2, 5), (12, 15), (22, 25), (32, 35)]
    >>> byte_ranges((4, 10), [Box((0, 2), (4, 5))], item_bytes=1, gap_bytes=8)
    [(2, 35)]
    """
    steps = byte_strides(shape, item_bytes)

    def within(axis: int, some: Sequence[Box]) -> list[Range]:
        """The ranges of one index along each axis before `axis`."""
        if axis == len(shape):
            return [(0, item_bytes)]
        step = steps[axis]
        edges = sorted({edge for box in some for edge in (box.start[axis], box.stop[axis])})
        found: list[Range] = []
        for a, b in pairwise(edges):
            here = [box for box in some if box.start[axis] <= a and b <= box.stop[axis]]
            if not here:
                continue
            inner = within(axis + 1, here)
            (low, _), (_, high) = inner[0], inner[-1]
            if len(inner) == 1 and step - high + low < gap_bytes:
                _join(found, a * step + low, (b - 1) * step + high, gap_bytes)
                continue
            for i in range(a, b):
                for low, high in inner:
                    _join(found, i * step + low, i * step + high, gap_bytes)
        return found

    wanted = [box for box in boxes if element_count(box)]
    return within(0, wanted) if wanted else []


def _join(found: list[Range], start: int, stop: int, gap_bytes: int) -> None:
    if found and start - found[-1][1] < gap_bytes:
        found[-1] = (found[-1][0], max(stop, found[-1][1]))
    else:
        found.append((start, stop))


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes that elements start to stop of an array in C order make up, in that order.

    At most two for each axis, less one.

    >>> list(flat_boxes((3, 4), 2, 12))
    [Box(start=(0, 2), stop=(1, 4)), Box(start=(1, 0), stop=(3, 4))]
    """
    axes = len(shape)
    steps = byte_strides(shape, 1)
    while start < stop:
        # The outermost axis whose next whole index is met; inside it all lies one after another.
        axis = 0
        while axis < axes and (start % steps[axis] or start + steps[axis] > stop):
            axis += 1
        index = []
        rest = start
        for step in steps:
            i, rest = divmod(rest, step)
            index.append(i)
        if axis == axes:  # an array without axes
            yield Box((), ())
            return
        count = min((stop - start) // steps[axis], shape[axis] - index[axis])
        yield Box(
            tuple(index),
            (*[i + 1 for i in index[:axis]], index[axis] + count, *shape[axis + 1 :]),
        )
        start += count * steps[axis]


def is_tiling(parts: Sequence[Box], box: Box) -> bool:
    """Whether the parts, boxes within `box`, cover it, and none of it twice.

    Raises LimitError for many parts that are no grid, along many axes.
    """
    if sum(map(element_count, parts)) != element_count(box):
        return False
    return _is_grid(parts, box) or _sum_up(parts, box)


def _is_grid(parts: Sequence[Box], box: Box) -> bool:
    """Whether the parts are what cuts along each axis make of the box, as parts mostly are."""
    stop_of: list[dict[int, int]] = []
    for axis, (low, high) in enumerate(zip(box.start, box.stop, strict=True)):
        starts = sorted({part.start[axis] for part in parts})
        if starts[:1] != [low]:
            return False
        stop_of.append(dict(zip(starts, [*starts[1:], high], strict=True)))
    if len({part.start for part in parts}) != math.prod(map(len, stop_of)):
        return False
    return all(
        stops[a] == b
        for part in parts
        for stops, a, b in zip(stop_of, part.start, part.stop, strict=True)
    )


def _sum_up(parts: Sequence[Box], box: Box) -> bool:
    """Whether the indicator functions of the parts add up to that of the box.

    They do where their derivatives are equal: points at the corners, each with a sign.
    """
    cut = [
        axis
        for axis, extent in enumerate(shape_of(box))
        if any(part.stop[axis] - part.start[axis] != extent for part in parts)
    ]
    if len(parts) << len(cut) > _MAX_CORNERS:
        raise LimitError(
            f"an array is stored in {len(parts)} parts that are no grid, along {len(cut)} axes: "
            f"expected at most {_MAX_CORNERS} corners"
        )
    corners: Counter[tuple[int, ...]] = Counter()
    for part, sign in [*[(part, 1) for part in parts], (box, -1)]:
        for corner in product(*[((part.start[axis], 1), (part.stop[axis], -1)) for axis in cut]):
            corners[tuple([at for at, _ in corner])] += sign * math.prod([s for _, s in corner])
    return not any(corners.values())
