"""The cells that a leaf is cut into: along each axis, the positions where the parts begin.

In JSON an axis is a list of those starts, or, where the parts are as even as can be, their
number n: part i of an axis of size s begins at i * s // n.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from cordwood.errors import FormatError
from cordwood.index import Box
from cordwood.sharding.boxes import Cuts, cell_box


class Grid(NamedTuple):
    """A shape and its cuts; cells are numbered in C order."""

    shape: tuple[int, ...]
    cuts: Cuts

    @property
    def cell_count(self) -> int:
        """The number of cells."""
        return prod(map(len, self.cuts))

    def box(self, cell: int) -> Box:
        """Return the box of a cell."""
        return cell_box(self.shape, self.cuts, cell)


def cell_counter(grid: Grid) -> Callable[[int], int]:
    """Return a function that gives the number of elements of a cell."""
    widths = [
        [b - a for a, b in zip(starts, (*starts[1:], size), strict=True)]
        for starts, size in zip(grid.cuts, grid.shape, strict=True)
    ]
    if all(min(axis) == max(axis) for axis in widths):
        same = prod([axis[0] for axis in widths])
        return lambda _: same

    def count(cell: int) -> int:
        elements = 1
        for axis in reversed(widths):
            cell, i = divmod(cell, len(axis))
            elements *= axis[i]
        return elements

    return count


def cells_meeting(grid: Grid, box: Box) -> Iterator[int]:
    """Return the cells that have elements in common with a box.

    >>> list(cells_meeting(Grid((8, 4), ((0, 4), (0, 2))), Box((1, 1), (3, 4))))
    [0, 1]
    """
    ranges = [
        range(bisect_right(starts, a) - 1, bisect_left(starts, b)) if a < b else range(0)
        for starts, a, b in zip(grid.cuts, box.start, box.stop, strict=True)
    ]
    counts = [len(starts) for starts in grid.cuts]
    for position in product(*ranges):
        cell = 0
        for i, count in zip(position, counts, strict=True):
            cell = cell * count + i
        yield cell


def cuts_to_json(shape: Sequence[int], cuts: Cuts) -> list[Any]:
    """Return the JSON form of cuts."""
    return [
        len(starts) if starts == _even(len(starts), size) else list(starts)
        for size, starts in zip(shape, cuts, strict=True)
    ]


def _even(count: int, size: int) -> tuple[int, ...]:
    return tuple([i * size // count for i in range(count)])


class Axis(NamedTuple):
    """The cuts along an axis as they were read; only their number is checked so far."""

    size: int
    parts: int
    starts: tuple[int, ...] | None  # None: even


def parse_axis(size: int, item: Any, *, where: str) -> Axis:
    """Check the JSON form of one axis. Takes no memory for the cuts. Raises FormatError."""
    if type(item) is int:
        if not 1 <= item <= max(size, 1):
            raise FormatError(f"{where}: an axis of {size} cannot be cut into {item} parts")
        return Axis(size, item, None)
    if type(item) is not list or not item or not set(map(type, item)) <= {int}:
        raise FormatError(
            f"{where}: expected a number of parts or their starts, found {item!r:.80}"
        )
    ascending = all(map(int.__lt__, item, item[1:]))
    if item[0] != 0 or not ascending or (item[-1] >= size and len(item) > 1):
        raise FormatError(
            f"{where}: expected starts from 0 on, ascending and below {size}, found {item!r:.80}"
        )
    return Axis(size, len(item), tuple(item))


def cuts_from_json(axes: Sequence[Axis]) -> Cuts:
    """Return the cuts. Call it once their number has been checked against the limits."""
    return tuple(
        [_even(axis.parts, axis.size) if axis.starts is None else axis.starts for axis in axes]
    )
