"""Snapshots of leaves, for a save in the background while the caller changes them.

A jax.Array on CPU is not copied: a numpy view of each shard keeps its buffer in use. Until the view
is dropped, a step that donates the array computes into new memory, and a deletion frees nothing.
On an accelerator the transfer of the shards to pinned host memory is started. numpy arrays are
copied, because any code may write into them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.jax_private import local_arrays
from cordwood.index import Box
from cordwood.sharding.boxes import device_boxes, intersect, shape_of, whole_box
from cordwood.tree.leaves import has_numpy_view, is_jax_array, pinned_host, single_device_array


class ArraySnapshot:
    """The distinct parts of one jax.Array that this process holds.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each part holds.
        parts: the parts: numpy arrays, or jax.Arrays in pinned host memory.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, boxes: Sequence[Box], parts: Sequence[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._boxes = boxes
        self._parts = parts

    def part(self, box: Box) -> np.ndarray[Any, Any]:
        """Return the elements of a box: a view, if one part holds them all.

        Raises ValueError for a box that is not wholly on this process.
        """
        overlaps = []
        for around, data in zip(self._boxes, self._parts, strict=True):
            common = intersect(around, box)
            if common == box or around == box:
                array: np.ndarray[Any, Any] = np.asarray(data)[_within(box, around)]
                return array
            if common is not None:
                overlaps.append((common, around, data))
        result = np.empty(shape_of(box), self.dtype)
        missing = result.size
        for common, around, data in overlaps:
            piece = np.asarray(data)[_within(common, around)]
            result[_within(common, box)] = piece
            missing -= piece.size
        if missing:
            raise ValueError(f"{box} of an array of shape {self.shape} is not all on this process")
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.part(whole_box(self.shape))
        return array if dtype is None and not copy else np.array(array, dtype, copy=copy)


class LocalShardReader:
    """A reader of boxes of jax.Arrays, straight from the shards of this process."""

    def __init__(self) -> None:
        self._cache: dict[tuple[Any, tuple[int, ...]], _DistinctShards] = {}

    def part(self, leaf: Any, box: Box) -> np.ndarray[Any, Any]:
        """Return the elements of a box: a view where possible, which keeps the buffer in use.

        Raises ValueError for a box that no single shard of this process holds.
        """
        if len(leaf.sharding.device_set) == 1:
            alone: np.ndarray[Any, Any] = single_device_array(leaf)[
                _within(box, whole_box(leaf.shape))
            ]
            return alone
        key = (leaf.sharding, leaf.shape)
        distinct = self._cache.get(key)
        if distinct is None:
            distinct = self._cache[key] = _distinct(leaf)
        for number, around in zip(distinct.numbers, distinct.boxes, strict=True):
            if around == box or intersect(around, box) == box:
                shard = single_device_array(local_arrays(leaf)[number])
                part: np.ndarray[Any, Any] = shard[_within(box, around)]
                return part
        raise ValueError(f"{box} of an array of shape {leaf.shape} is on no shard of this process")


def _within(box: Box, around: Box) -> tuple[Any, ...]:
    """Return the index of `box` in an array that holds the box `around`."""
    parts = [
        slice(a - origin, b - origin)
        for a, b, origin in zip(box.start, box.stop, around.start, strict=True)
    ]
    return (*parts, ...)  # an array even of no dimensions, not a scalar


def snapshot_leaves(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with their present values, which later changes do not affect.

    jax.Arrays become ArraySnapshots, numpy arrays are copied; all other leaves are immutable and
    stay. The caller's arrays are not modified. One case is not protected: memory that a jax.Array
    shares with a numpy array (`jax.device_put` of one, on CPU) can still change, and this cannot
    be detected.

    Waits only for arrays on CPU that are still being computed.
    """
    held: list[Any] = []
    distinct: dict[tuple[Any, tuple[int, ...]], _DistinctShards] = {}
    moving: list[_Moving] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf = np.array(leaf)
        elif is_jax_array(leaf):
            leaf = _hold_jax(leaf, distinct, moving)
        held.append(leaf)
    _move(moving)
    return held


class _DistinctShards(NamedTuple):
    """The distinct shards on this process of arrays of one shape and sharding."""

    numbers: list[int]  # positions among the shards of the process
    boxes: list[Box]
    viewed: bool  # numpy can view them in place, if it has a dtype of their size
    pinned: list[Any]  # otherwise the sharding in pinned host memory to copy to; None: not possible


class _Moving(NamedTuple):
    """A shard to copy to host memory, and the list entry that gets the copy."""

    data: Any
    pinned: Any
    parts: list[Any]
    position: int


def _hold_jax(leaf: Any, cache: dict[Any, _DistinctShards], moving: list[_Moving]) -> ArraySnapshot:
    dtype = leaf.dtype
    if not isinstance(dtype, np.dtype):
        import jax

        leaf = jax.random.key_data(leaf)
        dtype = leaf.dtype
    shape = leaf.shape
    key = (leaf.sharding, shape)
    distinct = cache.get(key)
    if distinct is None:
        distinct = cache[key] = _distinct(leaf)
    numbers, boxes, viewed, pinned = distinct
    shards = local_arrays(leaf)
    if viewed and has_numpy_view(dtype):
        return ArraySnapshot(
            shape, dtype, boxes, [np.asarray(shards[number]) for number in numbers]
        )
    parts: list[Any] = []
    for number, target in zip(numbers, pinned, strict=True):
        if target is None:
            parts.append(single_device_array(shards[number]))
        else:
            moving.append(_Moving(shards[number], target, parts, len(parts)))
            parts.append(None)
    return ArraySnapshot(shape, dtype, boxes, parts)


def _distinct(leaf: Any) -> _DistinctShards:
    """Return the shards of this process to use, so that each box of the array occurs once."""
    boxes = device_boxes(leaf.sharding, leaf.shape)
    devices = [next(iter(shard.devices())) for shard in local_arrays(leaf)]
    numbers = list({boxes[device]: i for i, device in reversed(list(enumerate(devices)))}.values())
    pinned = [pinned_host(devices[i]) for i in numbers]
    viewed = all(device.platform == "cpu" for device in devices) and not any(pinned)
    return _DistinctShards(numbers, [boxes[devices[i]] for i in numbers], viewed, pinned)


def _move(moving: Sequence[_Moving]) -> None:
    """Start all transfers; XLA orders them before the next use or donation of the arrays."""
    if not moving:
        return
    import jax

    copies = jax.device_put(
        [each.data for each in moving], [each.pinned for each in moving], may_alias=False
    )
    for copy, each in zip(copies, moving, strict=True):
        each.parts[each.position] = copy
