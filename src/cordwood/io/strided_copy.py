"""Copies of boxes of elements between arrays of other strides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cordwood.index import Box
from cordwood.plan.load_plan import Scatter, byte_strides, flat_boxes
from cordwood.sharding.boxes import intersect, shape_of

# One type of each size, so that numpy moves whole elements, several at a time.
_CARRIERS: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
    32: np.dtype("V32"),
}


def strided_copy(
    spread: Scatter, data: memoryview, start: int, buffers: Sequence[memoryview]
) -> None:
    """Copy `data`, the stored array's bytes from `start` on, to where its parts go.

    The bytes may begin or end within an element. No copy has more axes than the array (numpy has
    at most 64): an axis for the bytes of an element is added only where axes of a single index
    are left out. Lets other threads run while it copies much.
    """
    item = spread.item_bytes
    steps = (*byte_strides(spread.shape, item), 1)
    for cell in flat_boxes((*spread.shape, item), start, start + len(data)):
        elements = Box(cell.start[:-1], cell.stop[:-1])
        cut, size = cell.start[-1], cell.stop[-1] - cell.start[-1]
        for part in spread.parts:
            common = intersect(elements, part.box)
            if common is None:
                continue
            position = sum(map(int.__mul__, common.start, steps)) - start + cut
            target = part.position_of(common.start) + cut
            carrier = _CARRIERS[item]
            extents, source_steps, target_steps = shape_of(common), steps[:-1], part.steps
            if size < item:
                carrier = _CARRIERS[1]
                extents, source_steps, target_steps = (*extents, size), steps, (*part.steps, 1)
            shape, *strides = _with_few_axes(extents, source_steps, target_steps)
            source = np.ndarray(shape, carrier, data, position, strides[0])
            buffer = buffers[part.buffer]
            _copy(np.ndarray(shape, carrier, buffer, target, strides[1]), source)


def _with_few_axes(
    shape: Sequence[int], steps: Sequence[int], other_steps: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return the shape and both strides of a box without axes of one index.

    Axes that follow each other in both arrays are one, so that tiles run through all of it.
    """
    extents: list[int] = []
    kept: list[int] = []
    others: list[int] = []
    for extent, step, other in zip(shape, steps, other_steps, strict=True):
        if extent == 1:
            continue
        if extents and kept[-1] == extent * step and others[-1] == extent * other:
            extents[-1] *= extent
            kept[-1], others[-1] = step, other
        else:
            extents.append(extent)
            kept.append(step)
            others.append(other)
    return extents, kept, others


_TILE = 16  # so many rows fit into the cache: ten times as fast as all rows at once


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy elements; in tiles where neighbours in the source lie far from each other in the target.

    The axis along which the target is contiguous is cut, as each element of a row of the source
    begins a cache line of the target.
    """
    near = _nearest_axis(target)
    if near in (None, _nearest_axis(source)) or target.shape[near] <= _TILE:
        np.copyto(target, source)
        return
    to, of = np.moveaxis(target, near, 0), np.moveaxis(source, near, 0)
    for start in range(0, len(to), _TILE):
        np.copyto(to[start : start + _TILE], of[start : start + _TILE])


def _nearest_axis(array: np.ndarray) -> int | None:
    """Return the axis of the least stride among those of more than one index; None for none."""
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    return min(axes, key=lambda axis: array.strides[axis], default=None)
