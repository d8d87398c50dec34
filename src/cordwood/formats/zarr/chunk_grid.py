"""The chunks of an array: a regular grid, padded at the far edges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cordwood.index import Box
from cordwood.sharding.boxes import Cuts, element_count, is_contiguous, shape_of

_FINER = 4  # at most so many times more chunks than needed, so that they end where shards do


def chunk_shape(
    shape: Sequence[int], cuts: Cuts, *, itemsize: int, max_bytes: int
) -> tuple[int, ...]:
    """Return the shape of the chunks of an array whose shards begin at the cuts.

    A chunk is a shard, or a part of a shard of more than `max_bytes`: such a shard is split
    along its first axis into equal parts, and along the next axis if one row is still too large.
    No chunk has elements of two shards.

    >>> chunk_shape((8, 6), ((0, 4), (0,)), itemsize=4, max_bytes=100)
    (4, 6)
    >>> chunk_shape((8, 6), ((0, 4), (0,)), itemsize=4, max_bytes=50)
    (2, 6)
    >>> chunk_shape((7, 6), ((0,), (0,)), itemsize=4, max_bytes=100)
    (4, 6)
    """
    extents = [_period(size, starts) for size, starts in zip(shape, cuts, strict=True)]
    for axis, starts in enumerate(cuts):
        inner = itemsize * math.prod(extents[axis + 1 :])
        rows = extents[axis]
        if rows * inner <= max_bytes:
            break
        most = max(1, max_bytes // inner)
        parts = -(-rows // most)
        extents[axis] = -(-rows // parts) if len(starts) == 1 else _divisor(rows, most)
    return tuple(extents)


def _period(size: int, starts: Sequence[int]) -> int:
    """Return the largest extent whose multiples include all cuts; at least 1."""
    if len(starts) == 1:
        return max(1, size)
    step = starts[1]
    if list(starts) == list(range(0, size, step)):
        return step
    return math.gcd(*starts)


def _divisor(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` up to `most`; a larger one if that is much smaller."""
    below = max(n for n in _divisors(rows) if n <= most)
    if below * _FINER >= most:
        return below
    return min(n for n in _divisors(rows) if n > most)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return [*small, *[number // n for n in small]]


def chunk_count(shape: Sequence[int], extents: Sequence[int]) -> int:
    """Return the number of chunks of an array; 0 if it has no elements."""
    return math.prod([-(-size // extent) for size, extent in zip(shape, extents, strict=True)])


def chunks(
    shape: Sequence[int], extents: Sequence[int], separator: str
) -> Iterator[tuple[str, Box]]:
    """Return the name of each chunk and the part of the array that it holds, in C order.

    >>> list(chunks((3,), (2,), "."))
    [('0', Box(start=(0,), stop=(2,))), ('1', Box(start=(2,), stop=(3,)))]
    """
    counts = [-(-size // extent) for size, extent in zip(shape, extents, strict=True)]
    for number in range(math.prod(counts)):  # not itertools.product: there may be 2**60
        index: list[int] = []
        for size in reversed(counts):
            number, i = divmod(number, size)
            index.insert(0, i)
        start = tuple([i * extent for i, extent in zip(index, extents, strict=True)])
        ends = zip(start, extents, shape, strict=True)
        box = Box(start, tuple([min(a + extent, size) for a, extent, size in ends]))
        yield separator.join(map(str, index)) or "0", box


def leading_bytes(box: Box, extents: Sequence[int], itemsize: int) -> int | None:
    """Return the size in bytes of a box, if its elements are the first ones of its chunk.

    None if there is padding between the elements: if the chunk is padded along any axis but the
    first one along which it holds more than one index.
    """
    return element_count(box) * itemsize if is_contiguous(shape_of(box), extents) else None
