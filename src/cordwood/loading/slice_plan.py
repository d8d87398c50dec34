"""The boxes to read for an index of an array, such as `leaf[2:4, ::1000]`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.index import Box
from cordwood.plan.load_plan import byte_strides
from cordwood.plan.move_templates import RANGE_PRICE_BYTES

# Smaller gaps are read, because that costs less than skipping them.
_SKIP_BYTES = BLOCK_BYTES + RANGE_PRICE_BYTES
_MAX_BOXES = 4096


class SlicePlan(NamedTuple):
    """The boxes to read for an index of an array, and the key to apply to the result."""

    boxes: tuple[Box, ...]  # they differ along `axis` only; concatenate them along it
    axis: int
    key: Any


class _Axis(NamedTuple):
    """The part of an axis that a key needs: a range, or some single indices."""

    start: int
    stop: int
    key: Any
    single: range | None = None


def plan_slice(shape: Sequence[int], key: Any, *, item_bytes: int) -> SlicePlan:
    """Return the boxes to read for an index of an array of that shape.

    Axes that are indexed by arrays are read whole. On one axis, the gaps of a slice with a long
    step are not read.

    Raises whatever numpy raises for the same index of such an array.
    """
    np.broadcast_to(np.empty((), np.bool_), shape)[key]
    keys = key if isinstance(key, tuple) else (key,)
    lengths = [_axes_of(each) for each in keys]
    missing = len(shape) - sum(lengths)
    steps = byte_strides(shape, item_bytes)
    whole = [_Axis(0, size, None) for size in shape]
    axes: list[_Axis] = []
    key_in_boxes: list[Any] = []
    for each, length in zip(keys, lengths, strict=True):
        at = len(axes)
        if length == 1 and isinstance(each, slice):
            may_pick = all(axis.single is None for axis in axes)
            axes.append(_slice(shape[at], each, steps[at] if may_pick else 0))
            key_in_boxes.append(axes[-1].key)
        elif length == 1 and _is_index(each):
            index = operator.index(each) % shape[at]
            axes.append(_Axis(index, index + 1, 0))
            key_in_boxes.append(0)
        else:
            key_in_boxes.append(each)
            axes += whole[at : at + (missing if each is Ellipsis else length)]
    axes += whole[len(axes) :]
    return _boxes(axes, tuple(key_in_boxes))


def _axes_of(key: Any) -> int:
    """Return the number of axes that one part of an index consumes."""
    if key is None or key is Ellipsis or isinstance(key, (bool, np.bool_)):
        return 0
    if isinstance(key, slice) or _is_index(key):
        return 1
    array = np.asarray(key)
    return array.ndim if array.dtype == np.bool_ else 1


def _is_index(key: Any) -> bool:
    try:
        operator.index(key)
    except TypeError:
        return False
    return True


def _slice(size: int, key: slice, step_bytes: int) -> _Axis:
    picked = range(size)[key]
    if not picked:
        return _Axis(0, 0, slice(0, 0))
    low, high = sorted((picked[0], picked[-1]))
    step = picked.step
    if (abs(step) - 1) * step_bytes >= _SKIP_BYTES and len(picked) <= _MAX_BOXES:
        return _Axis(low, high + 1, slice(None, None, 1 if step > 0 else -1), picked)
    return _Axis(low, high + 1, slice(None, None, step))


def _boxes(axes: Sequence[_Axis], key: tuple[Any, ...]) -> SlicePlan:
    start = tuple([axis.start for axis in axes])
    stop = tuple([axis.stop for axis in axes])
    for i, axis in enumerate(axes):
        if axis.single is not None:
            boxes = [
                Box((*start[:i], at, *start[i + 1 :]), (*stop[:i], at + 1, *stop[i + 1 :]))
                for at in sorted(axis.single)
            ]
            return SlicePlan(tuple(boxes), i, key)
    return SlicePlan((Box(start, stop),), 0, key)
