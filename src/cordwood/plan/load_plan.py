"""Load plans: the byte ranges to read from sources, and where their bytes go. Pure.

A move copies bytes to a buffer. A scatter makes strided copies of boxes of a stored array, out of
the bytes that were read. An extent is a contiguous range that holds bytes of a leaf unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.errors import LimitError
from cordwood.index import Box, Codec, Leaf, Piece, Pieces, Span
from cordwood.plan.split_arrays import element_range
from cordwood.sharding.boxes import element_count, is_contiguous, shape_of


class BoxDestination(NamedTuple):
    """A box of a stored array, and the place in a buffer to copy it to."""

    box: Box
    buffer: int
    position: int  # in bytes, of the box's first element
    steps: tuple[int, ...]  # the strides in the buffer, in bytes

    def position_of(self, index: Sequence[int]) -> int:
        """Return the position of an element of the box."""
        from_start = map(int.__sub__, index, self.box.start)
        return self.position + sum(map(int.__mul__, from_start, self.steps))


class Scatter(NamedTuple):
    """A stored array, in C order, and the boxes of it to copy to buffers."""

    shape: tuple[int, ...]
    item_bytes: int
    parts: tuple[BoxDestination, ...]


class EncodedChunk(NamedTuple):
    """A range of a source to decode; the result is the whole array of `scatter`."""

    source: int
    offset: int
    length: int
    codec: Codec
    dtype: str
    scatter: Scatter


ALIGNMENT = 64  # jax.device_put aliases only memory that is aligned so


class Move(NamedTuple):
    """A copy of bytes [offset, offset + length) of a source to a target, from `position` on.

    The target is a buffer, by its number; or a scatter, of whose stored array these are the bytes.
    """

    source: int
    offset: int
    length: int
    target: int | Scatter
    position: int


# The place of a requested leaf or box once the moves are done: buffer, position (a multiple of
# ALIGNMENT), length. A bare tuple, which takes a fifth of the time of a named one.
Placement: TypeAlias = tuple[int, int, int]


class LoadPlan(NamedTuple):
    """Buffers to allocate, moves to make (sorted by source and offset), and where leaves lie."""

    buffers: tuple[int, ...]  # sizes in bytes
    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]  # one for each requested leaf or box, in their order
    chunks: tuple[EncodedChunk, ...] = ()


class Extent(NamedTuple):
    """Bytes start to stop (half-open) of a leaf, in C order, and their place in a source."""

    start: int
    stop: int
    source: int
    offset: int  # in bytes, from the start of the source


def contiguous_extents(leaf: Leaf) -> list[Extent] | None:
    """Return the stored ranges of an array leaf, in the order of its bytes.

    Return None if its bytes have to be decoded, or if a piece holds elements that are not
    contiguous in the leaf: such a leaf is read by boxes.
    """
    storage = leaf.storage
    if not isinstance(storage, Pieces) or storage.encoding != "raw":
        return None
    item = dtypes.itemsize(leaf.dtype)
    extents = []
    for piece in storage.pieces:
        elements = _elements(piece, leaf.shape)
        if elements is None:
            return None
        start, stop = elements
        if (stop - start) * item != piece.length:
            return None
        if start == stop:  # a chunk without elements, as Flax has them
            continue
        extents.append(Extent(start * item, stop * item, piece.source, piece.offset))
    extents.sort()
    end = 0
    for extent in extents:
        if extent.start != end:
            return None
        end = extent.stop
    return extents if end == math.prod(leaf.shape) * item else None


def plan_extent_moves(extents: Sequence[Extent], start: int, stop: int) -> list[Move]:
    """Return the moves that fill one buffer with bytes start to stop of a leaf, by source."""
    moves = []
    first = bisect_right(extents, start, key=lambda extent: extent.stop)
    for extent in extents[first:]:
        a, b = max(start, extent.start), min(stop, extent.stop)
        if a >= b:
            break
        moves.append(Move(extent.source, extent.offset + a - extent.start, b - a, 0, a - start))
    return sorted(moves)


def _elements(piece: Piece, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the elements of a leaf that a piece holds; None if they are not contiguous."""
    where = piece.where
    if isinstance(where, Span):
        return where
    if len(where.start) != len(shape) or not is_contiguous(shape_of(where), shape):
        return None
    ends = zip(where.start, where.stop, shape, strict=True)
    return element_range(where, shape) if all(0 <= a <= b <= n for a, b, n in ends) else None


# Byte ranges of boxes of an array in C order

Range: TypeAlias = tuple[int, int]  # start and stop, in bytes, from the start of the array

_MAX_CORNERS = 1 << 20


def byte_strides(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Return the strides of an array in C order: bytes from one index to the next, along each axis.

    >>> byte_strides((4, 3), 2)
    (6, 2)
    """
    strides = []
    size = item_bytes
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


class ContiguousRuns(NamedTuple):
    """Byte runs of a box that lies in two arrays; each run is contiguous in both."""

    length: int  # of each run, in bytes
    starts: tuple[tuple[int, int], ...]  # of each run: its offset in each array, from the box's


def contiguous_runs(
    extent: Sequence[int],
    steps: Sequence[int],
    other_steps: Sequence[int],
    *,
    item_bytes: int,
    least_bytes: int,
) -> ContiguousRuns | None:
    """Return the runs of a box in two arrays; None if there are several and they are short.

    Args:
        extent: the shape of the box; no axis is 0.
        steps: the strides of the first array, in bytes.
        other_steps: the strides of the second array, in bytes.
        item_bytes: the size of an element.
        least_bytes: the minimum length of a run if there are several.

    >>> contiguous_runs((2, 3), (6, 2), (6, 2), item_bytes=2, least_bytes=100)
    ContiguousRuns(length=12, starts=((0, 0),))
    >>> contiguous_runs((2, 3), (8, 2), (6, 2), item_bytes=2, least_bytes=6)
    ContiguousRuns(length=6, starts=((0, 0), (8, 6)))
    >>> contiguous_runs((2, 3), (8, 2), (6, 2), item_bytes=2, least_bytes=7)
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
    """Return the ranges of an array's bytes that hold the boxes, in ascending order.

    A gap shorter than `gap_bytes`, the cost of one more range, is read and not skipped. This
    decides how many of the leading axes the ranges loop over. So there is never more than one
    range for every `gap_bytes` of the array, and the total cost is the least possible.

    >>> byte_ranges((4, 10), [Box((0, 2), (4, 5))], item_bytes=1, gap_bytes=7)
    [(2, 5), (12, 15), (22, 25), (32, 35)]
    >>> byte_ranges((4, 10), [Box((0, 2), (4, 5))], item_bytes=1, gap_bytes=8)
    [(2, 35)]
    """
    steps = byte_strides(shape, item_bytes)

    def within(axis: int, some: Sequence[Box]) -> list[Range]:
        """Return the ranges for one index along each axis before `axis`."""
        if axis == len(shape):
            return [(0, item_bytes)]
        step = steps[axis]
        edges = sorted({edge for box in some for edge in (box.start[axis], box.stop[axis])})
        ranges: list[Range] = []
        for a, b in pairwise(edges):
            slab = [box for box in some if box.start[axis] <= a and b <= box.stop[axis]]
            if not slab:
                continue
            inner = within(axis + 1, slab)
            (low, _), (_, high) = inner[0], inner[-1]
            if len(inner) == 1 and step - high + low < gap_bytes:
                _append(ranges, a * step + low, (b - 1) * step + high, gap_bytes)
                continue
            for i in range(a, b):
                for low, high in inner:
                    _append(ranges, i * step + low, i * step + high, gap_bytes)
        return ranges

    nonempty = [box for box in boxes if element_count(box)]
    return within(0, nonempty) if nonempty else []


def _append(ranges: list[Range], start: int, stop: int, gap_bytes: int) -> None:
    """Add a range, or extend the last one if the gap before it is short."""
    if ranges and start - ranges[-1][1] < gap_bytes:
        ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
    else:
        ranges.append((start, stop))


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that together are elements start to stop of an array in C order, in order.

    There are at most 2n - 1 boxes for an array of n axes.

    >>> list(flat_boxes((3, 4), 2, 12))
    [Box(start=(0, 2), stop=(1, 4)), Box(start=(1, 0), stop=(3, 4))]
    """
    axes = len(shape)
    steps = byte_strides(shape, 1)
    while start < stop:
        # The outermost axis along which a whole index comes next: all within it is contiguous.
        axis = 0
        while axis < axes and (start % steps[axis] or start + steps[axis] > stop):
            axis += 1
        index = []
        remainder = start
        for step in steps:
            i, remainder = divmod(remainder, step)
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
    """Return True if the parts, boxes within `box`, cover it and do not overlap.

    Raises:
        LimitError: there are too many parts, along too many axes, that do not form a grid.
    """
    if sum(map(element_count, parts)) != element_count(box):
        return False
    return _is_grid(parts, box) or _is_sum(parts, box)


def _is_grid(parts: Sequence[Box], box: Box) -> bool:
    """Return True if the parts form a grid: the cells that cuts along each axis make of the box."""
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


def _is_sum(parts: Sequence[Box], box: Box) -> bool:
    """Return True if the indicator functions of the parts add up to that of the box.

    They do if their mixed derivatives are equal: points at the corners, each with a sign.
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
