"""The cells of a leaf: a shape, and where it is cut along each axis.

In JSON an axis is a list of the positions where its parts begin, or, where the parts are as even as
can be, their number n: part i of an axis of size s begins at i * s // n.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from cordwood.errors import FormatError
from cordwood.index import Box
from cordwood.sharding.boxes import Cuts, cell_box


@dataclass(frozen=True)
class Grid:
    """A shape and its cuts; cells are numbered in C order. Make one with `of`.

    Attributes:
        shape: the shape.
        axes: of each axis the starts of its parts, or their number if they are even. Check
            `counts` against the limits before you use `cuts`: a small file can demand many.
    """

    shape: tuple[int, ...]
    axes: tuple[int | tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], cuts: Cuts) -> Grid:
        """Return a grid, equal to others of the same cuts."""
        return cls(shape, tuple(map(_axis, shape, cuts)))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of parts along each axis."""
        return tuple([axis if isinstance(axis, int) else len(axis) for axis in self.axes])

    @cached_property
    def cell_count(self) -> int:
        """The number of cells."""
        return prod(self.counts)

    @cached_property
    def cuts(self) -> Cuts:
        """The starts of the parts along each axis."""
        axes = zip(self.axes, self.shape, strict=True)
        return tuple([_even(axis, size) if isinstance(axis, int) else axis for axis, size in axes])

    def box(self, cell: int) -> Box:
        """Return the box of a cell."""
        return cell_box(self.shape, self.cuts, cell)


def _even(count: int, size: int) -> tuple[int, ...]:
    return tuple([i * size // count for i in range(count)])


def _axis(size: int, starts: tuple[int, ...]) -> int | tuple[int, ...]:
    return len(starts) if starts == _even(len(starts), size) else starts


def cell_sizes(grid: Grid | None, itemsize: int) -> Callable[[int], int]:
    """Return a function that gives the size of a cell in bytes; 0 where there is no grid."""
    if grid is None:
        return lambda _: 0
    widths = [
        [b - a for a, b in zip(starts, (*starts[1:], size), strict=True)]
        for starts, size in zip(grid.cuts, grid.shape, strict=True)
    ]
    if all(min(axis) == max(axis) for axis in widths):
        same = prod([axis[0] for axis in widths]) * itemsize
        return lambda _: same

    def size(cell: int) -> int:
        size_bytes = itemsize
        for axis in reversed(widths):
            cell, i = divmod(cell, len(axis))
            size_bytes *= axis[i]
        return size_bytes

    return size


def cells_meeting(grid: Grid, box: Box) -> Iterator[int]:
    """Return the cells that have elements in common with a box.

    >>> list(cells_meeting(Grid((8, 4), ((0, 4), (0, 2))), Box((1, 1), (3, 4))))
    [0, 1]
    """
    ranges = [
        range(bisect_right(starts, a) - 1, bisect_left(starts, b)) if a < b else range(0)
        for starts, a, b in zip(grid.cuts, box.start, box.stop, strict=True)
    ]
    for position in product(*ranges):
        cell = 0
        for i, count in zip(position, grid.counts, strict=True):
            cell = cell * count + i
        yield cell


def parse_axis(size: int, item: Any, *, where: str) -> int | tuple[int, ...]:
    """Return an axis of a grid from its JSON form. Raises FormatError."""
    if type(item) is int:
        if not 1 <= item <= max(size, 1):
            raise FormatError(f"{where}: an axis of {size} cannot be cut into {item} parts")
        return item
    if type(item) is not list or not item or not set(map(type, item)) <= {int}:
        raise FormatError(
            f"{where}: expected a number of parts or their starts, found {item!r:.80}"
        )
    ascending = all(map(int.__lt__, item, item[1:]))
    if item[0] != 0 or not ascending or (item[-1] >= size and len(item) > 1):
        raise FormatError(
            f"{where}: expected starts from 0 on, ascending and below {size}, found {item!r:.80}"
        )
    return _axis(size, tuple(item))
