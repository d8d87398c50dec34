"""Leaves as they are now, for a save that goes on while the caller changes them.

A jax.Array on CPU is not copied: a numpy view of each of its shards pins the buffer, so that a
step which donates the array computes into new memory, and a deletion frees nothing, until the view
is dropped. On an accelerator the shards start on their way to pinned host memory. numpy arrays,
which anybody may write into, are copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.jax_private import local_arrays
from cordwood.index import Box
from cordwood.sharding.boxes import intersect, shape_of, whole_box
from cordwood.sharding.shard_grid import device_boxes
from cordwood.tree.leaves import has_numpy_view, is_jax_array, pinned_host, single_device_array


class ArraySnapshot:
    """The parts of one jax.Array that this process has, each distinct one once.

    Args:
        shape, dtype: of the whole array.
        boxes: where each part lies in it.
        parts: a numpy array each, or a jax.Array in pinned host memory.
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
        """The elements of a box: a view, where one part has them all.

        Raises ValueError for a box of which this process does not have everything.
        """
        found = []
        for around, data in zip(self._boxes, self._parts, strict=True):
            common = intersect(around, box)
            if common == box or around == box:
                array: np.ndarray[Any, Any] = np.asarray(data)[_within(box, around)]
                return array
            if common is not None:
                found.append((common, around, data))
        result = np.empty(shape_of(box), self.dtype)
        missing = result.size
        for common, around, data in found:
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
    """Parts of jax.Arrays as they are now, each straight from the shard that has it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, tuple[int, ...]], _Places] = {}

    def part(self, leaf: Any, box: Box) -> np.ndarray[Any, Any]:
        """The elements of a box: a view wherever there is one, which pins the buffer.

        Raises ValueError for a box that no shard of this process has whole.
        """
        if len(leaf.sharding.device_set) == 1:
            alone: np.ndarray[Any, Any] = single_device_array(leaf)[
                _within(box, whole_box(leaf.shape))
            ]
            return alone
        key = (leaf.sharding, leaf.shape)
        places = self._known.get(key)
        if places is None:
            places = self._known[key] = _distinct(leaf)
        for number, around in zip(places.numbers, places.boxes, strict=True):
            if around == box or intersect(around, box) == box:
                shard = single_device_array(local_arrays(leaf)[number])
                part: np.ndarray[Any, Any] = shard[_within(box, around)]
                return part
        raise ValueError(f"{box} of an array of shape {leaf.shape} is on no shard of this process")


def _within(box: Box, around: Box) -> tuple[Any, ...]:
    """The index of `box` in an array that holds `around`."""
    parts = [
        slice(a - origin, b - origin)
        for a, b, origin in zip(box.start, box.stop, around.start, strict=True)
    ]
    return (*parts, ...)  # an array even of no dimensions, not a scalar


def snapshot_leaves(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, with arrays as they are at this moment, whatever happens to them after.

    jax.Arrays become HeldArrays, numpy arrays copies; anything else is immutable and stays.
    Nothing is left behind on the caller's arrays. Only memory that a jax.Array shares with a
    numpy array (`jax.device_put` of one, on CPU) can still change: nobody can tell.

    Does not wait for anything but arrays on CPU that are still being computed.
    """
    held: list[Any] = []
    places: dict[tuple[Any, tuple[int, ...]], _Places] = {}
    moving: list[_Moving] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf = np.array(leaf)
        elif is_jax_array(leaf):
            leaf = _hold_jax(leaf, places, moving)
        held.append(leaf)
    _move(moving)
    return held


class _Places(NamedTuple):
    """The distinct shards of this process of arrays of one shape and sharding."""

    numbers: list[int]  # among the process's shards
    boxes: list[Box]
    viewed: bool  # numpy sees them where they are, if their dtype is one of numpy's own sizes
    pinned: list[Any]  # otherwise: where in the host's memory each can be brought; None: nowhere


class _Moving(NamedTuple):
    """A shard that is to be brought to the host's memory, and where it is wanted then."""

    data: Any
    pinned: Any
    parts: list[Any]
    position: int


def _hold_jax(leaf: Any, known: dict[Any, _Places], moving: list[_Moving]) -> ArraySnapshot:
    dtype = leaf.dtype
    if not isinstance(dtype, np.dtype):
        import jax

        leaf = jax.random.key_data(leaf)
        dtype = leaf.dtype
    shape = leaf.shape
    key = (leaf.sharding, shape)
    places = known.get(key)
    if places is None:
        places = known[key] = _distinct(leaf)
    numbers, boxes, viewed, pinned = places
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


def _distinct(leaf: Any) -> _Places:
    """Which shards of this process to take, so that each box of the array comes once."""
    boxes = device_boxes(leaf.sharding, leaf.shape)
    devices = [next(iter(shard.devices())) for shard in local_arrays(leaf)]
    numbers = list({boxes[device]: i for i, device in reversed(list(enumerate(devices)))}.values())
    pinned = [pinned_host(devices[i]) for i in numbers]
    viewed = all(device.platform == "cpu" for device in devices) and not any(pinned)
    return _Places(numbers, [boxes[devices[i]] for i in numbers], viewed, pinned)


def _move(moving: Sequence[_Moving]) -> None:
    """Start all transfers; XLA orders them before whatever next uses or donates the arrays."""
    if not moving:
        return
    import jax

    copies = jax.device_put(
        [each.data for each in moving], [each.pinned for each in moving], may_alias=False
    )
    for copy, each in zip(copies, moving, strict=True):
        each.parts[each.position] = copy
