"""Boxes, the parts of an array by index, half-open along each axis; and grids of shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from cordwood.index import Box

Cuts: TypeAlias = tuple[tuple[int, ...], ...]  # for each axis, the starts of the parts: 0 first


def whole_box(shape: Sequence[int]) -> Box:
    """Return the box of a whole array."""
    return Box((0,) * len(shape), tuple(shape))


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the sizes of a box along each axis."""
    return tuple(map(int.__sub__, box.stop, box.start))


def element_count(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(shape_of(box))


def slices(box: Box) -> tuple[Any, ...]:
    """Return a box as a numpy index, which gives an array even where there are no axes."""
    return (*[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)], ...)


def is_contiguous(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Return True if a box of those sizes, anywhere in an array of `shape`, is contiguous.

    Its elements then follow one another in C order.

    >>> is_contiguous((2, 2), (4, 2)), is_contiguous((2, 1), (4, 2))
    (True, False)
    """
    before = 1
    for size, full in zip(sizes, shape, strict=True):
        if size != full and before != 1:
            return False
        before *= size
    return True


def intersect(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes of one array; None if it is empty.

    >>> intersect(Box((0, 0), (4, 4)), Box((2, 1), (6, 2)))
    Box(start=(2, 1), stop=(4, 2))
    """
    start = tuple(map(max, a.start, b.start))
    stop = tuple(map(min, a.stop, b.stop))
    return Box(start, stop) if all(map(int.__lt__, start, stop)) else None


def overlaps(box: Box, boxes: Sequence[Box]) -> list[tuple[Box, int]]:
    """Return the parts of a box that other boxes hold, with the positions of those boxes.

    If one of them holds the box completely, only that one. No two of them overlap.

    Raises ValueError if they do not hold all of the box.

    >>> overlaps(Box((1,), (4,)), [Box((0,), (2,)), Box((2,), (8,))])
    [(Box(start=(1,), stop=(2,)), 0), (Box(start=(2,), stop=(4,)), 1)]
    """
    pieces = []
    for number, around in enumerate(boxes):
        common = intersect(around, box)
        if common == box or around == box:
            return [(box, number)]
        if common is not None:
            pieces.append((common, number))
    missing = element_count(box) - sum([element_count(common) for common, _ in pieces])
    if missing:
        raise ValueError(f"{missing} elements of {box} are in none of {len(boxes)} boxes")
    return pieces


def relative(box: Box, around: Box) -> Box:
    """Return a box as a box of the array that holds the box `around`."""
    start, stop = (tuple(map(int.__sub__, ends, around.start)) for ends in box)
    return Box(start, stop)


def absolute(box: Box, around: Box) -> Box:
    """Return a box of the array that holds the box `around` as a box of the whole array."""
    start, stop = (tuple(map(int.__add__, ends, around.start)) for ends in box)
    return Box(start, stop)


def within(box: Box, around: Box) -> tuple[Any, ...]:
    """Return the index of `box` in an array that holds the box `around`."""
    return slices(relative(box, around))


def grid_cells(shape: Sequence[int], cuts: Sequence[Sequence[int]]) -> list[Box]:
    """Return the boxes into which the cuts divide an array, in C order.

    >>> grid_cells((4, 2), ((0, 3), (0,)))
    [Box(start=(0, 0), stop=(3, 2)), Box(start=(3, 0), stop=(4, 2))]
    """
    edges = [
        list(zip(starts, (*starts[1:], size), strict=True))
        for starts, size in zip(cuts, shape, strict=True)
    ]
    return [Box(tuple([a for a, _ in ab]), tuple([b for _, b in ab])) for ab in product(*edges)]


def cell_box(shape: Sequence[int], cuts: Sequence[Sequence[int]], cell: int) -> Box:
    """Return the box of one cell, by its position in `grid_cells`."""
    start: list[int] = []
    stop: list[int] = []
    for starts, size in zip(reversed(cuts), reversed(tuple(shape)), strict=True):
        cell, i = divmod(cell, len(starts))
        start.append(starts[i])
        stop.append(starts[i + 1] if i + 1 < len(starts) else size)
    return Box(tuple(reversed(start)), tuple(reversed(stop)))


class ShardGrid(NamedTuple):
    """An array as a grid of cells, and the processes that hold each cell, in ascending order."""

    shape: tuple[int, ...]
    cuts: Cuts
    holders: tuple[tuple[int, ...], ...]  # of each cell, in C order


def single_process_grid(shape: Sequence[int], process: int = 0) -> ShardGrid:
    """Return the grid of an array that one process holds completely."""
    return ShardGrid(tuple(shape), ((0,),) * len(shape), ((process,),))


def shard_grid(sharding: Any, shape: Sequence[int]) -> ShardGrid:
    """Return the grid into which a jax.sharding.Sharding cuts an array of that shape.

    Raises:
        ValueError: the parts do not form a grid (jax has no such sharding).
    """
    holders: dict[Box, set[int]] = {}
    for device, box in device_boxes(sharding, shape).items():
        holders.setdefault(box, set()).add(device.process_index)
    cuts = tuple(
        [tuple(sorted({box.start[axis] for box in holders})) for axis in range(len(shape))]
    )
    grid = grid_cells(shape, cuts)
    if set(grid) != set(holders):
        raise ValueError(f"{sharding} cuts an array of shape {tuple(shape)} into parts of no grid")
    return ShardGrid(tuple(shape), cuts, tuple([tuple(sorted(holders[box])) for box in grid]))


def device_boxes(sharding: Any, shape: Sequence[int]) -> dict[Any, Box]:
    """Return the part of an array that each device holds, devices of other processes included."""
    return boxes_of(sharding.devices_indices_map(tuple(shape)), shape)


def boxes_of(indices: Mapping[Any, tuple[slice, ...]], shape: Sequence[int]) -> dict[Any, Box]:
    """Return boxes of an array of that shape, given as numpy indices."""
    boxes = {}
    for device, index in indices.items():
        ranges = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        boxes[device] = Box(tuple([a for a, _ in ranges]), tuple([b for _, b in ranges]))
    return boxes
