"""The shards of jax.Arrays on this process, as numpy arrays, and snapshots of leaves.

A snapshot is for a save in the background, while the caller changes the tree.

A jax.Array on CPU is not copied: a numpy view of each shard keeps its buffer in use. Until the view
is dropped, a step that donates the array computes into new memory, and a deletion frees nothing.
On an accelerator the transfer of the shards to pinned host memory is started. numpy arrays are
copied, because any code may write into them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.devices.jax_arrays import local_arrays
from cordwood.index import Box
from cordwood.sharding.boxes import device_boxes, intersect, shape_of, whole_box
from cordwood.tree.leaves import has_numpy_view, is_jax_array, pinned_host, single_device_array


class LocalShards:
    """The distinct shards of one jax.Array that this process holds.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each shard holds.
        shards: the shards: numpy arrays, or jax.Arrays on one device each.
        to_host: returns a shard as a numpy array.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        boxes: Sequence[Box],
        shards: list[Any],
        to_host: Callable[[Any], np.ndarray[Any, Any]] = np.asarray,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._boxes = boxes
        self._shards = shards
        self._to_host = to_host
        self._lock = threading.Lock()

    def part(self, box: Box) -> np.ndarray[Any, Any]:
        """Return the elements of a box: a view, if one shard holds them all.

        Raises ValueError for a box that is not wholly on this process.
        """
        overlaps = []
        for number, around in enumerate(self._boxes):
            if around == box:
                shard = self._shards[number]
                whole = shard if isinstance(shard, np.ndarray) else self._to_host(shard)
                return np.asarray(whole)[...]  # an array even of no dimensions, not a scalar
            common = intersect(around, box)
            if common == box:
                view: np.ndarray[Any, Any] = self._host_shard(number)[_within(box, around)]
                return view
            if common is not None:
                overlaps.append((common, around, number))
        result = np.empty(shape_of(box), self.dtype)
        missing = result.size
        for common, around, number in overlaps:
            piece = self._host_shard(number)[_within(common, around)]
            result[_within(common, box)] = piece
            missing -= piece.size
        if missing:
            raise ValueError(f"{box} of an array of shape {self.shape} is not all on this process")
        return result

    def _host_shard(self, number: int) -> np.ndarray[Any, Any]:
        """Return a shard, and keep it on the host: other parts of it will be needed."""
        with self._lock:
            shard = self._shards[number]
            if not isinstance(shard, np.ndarray):
                shard = self._shards[number] = self._to_host(shard)
        return np.asarray(shard)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.part(whole_box(self.shape))
        return array if dtype is None and not copy else np.array(array, dtype, copy=copy)


def _within(box: Box, around: Box) -> tuple[Any, ...]:
    """Return the index of `box` in an array that holds the box `around`."""
    parts = [
        slice(a - origin, b - origin)
        for a, b, origin in zip(box.start, box.stop, around.start, strict=True)
    ]
    return (*parts, ...)  # an array even of no dimensions, not a scalar


def local_shards(leaf: Any, cache: DistinctShardsOf) -> LocalShards:
    """Return the shards of a jax.Array where they are; a shard is copied when a part is needed.

    On CPU parts are views, which keep the buffer in use.

    Args:
        leaf: the array, which may be a PRNG key array.
        cache: the distinct shards of the arrays so far.
    """
    leaf, numbers, boxes, _, _ = _shards_of(leaf, cache)
    arrays = local_arrays(leaf)
    shards = [arrays[number] for number in numbers]
    return LocalShards(leaf.shape, leaf.dtype, boxes, shards, single_device_array)


def snapshot_leaves(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with their present values, which later changes do not affect.

    jax.Arrays become LocalShards, numpy arrays are copied; all other leaves are immutable and
    stay. The caller's arrays are not modified. One case is not protected: memory that a jax.Array
    shares with a numpy array (`jax.device_put` of one, on CPU) can still change, and this cannot
    be detected.

    Waits only for arrays on CPU that are still being computed.
    """
    held: list[Any] = []
    distinct: DistinctShardsOf = {}
    moving: list[_Moving] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf = np.array(leaf)
        elif is_jax_array(leaf):
            leaf = _hold_jax(leaf, distinct, moving)
        held.append(leaf)
    _move(moving)
    return held


class DistinctShards(NamedTuple):
    """The distinct shards on this process of arrays of one shape and sharding."""

    numbers: list[int]  # positions among the shards of the process
    boxes: list[Box]
    viewed: bool  # numpy can view them in place, if it has a dtype of their size
    pinned: list[Any]  # otherwise the sharding in pinned host memory to copy to; None: not possible


DistinctShardsOf: TypeAlias = dict[tuple[Any, tuple[int, ...]], DistinctShards]


class _Moving(NamedTuple):
    """A shard to copy to host memory, and the list entry that gets the copy."""

    data: Any
    pinned: Any
    shards: list[Any]
    position: int


def _hold_jax(leaf: Any, cache: DistinctShardsOf, moving: list[_Moving]) -> LocalShards:
    leaf, numbers, boxes, viewed, pinned = _shards_of(leaf, cache)
    arrays = local_arrays(leaf)
    shards: list[Any] = []
    for number, target in zip(numbers, pinned, strict=True):
        if viewed and has_numpy_view(leaf.dtype):
            shards.append(np.asarray(arrays[number]))
        elif target is None:
            shards.append(single_device_array(arrays[number]))
        else:
            moving.append(_Moving(arrays[number], target, shards, len(shards)))
            shards.append(None)
    return LocalShards(leaf.shape, leaf.dtype, boxes, shards)


def _shards_of(
    leaf: Any, cache: DistinctShardsOf
) -> tuple[Any, list[int], list[Box], bool, list[Any]]:
    """Return an array, of a PRNG key array the key data, and its distinct shards."""
    if not isinstance(leaf.dtype, np.dtype):
        import jax

        leaf = jax.random.key_data(leaf)
    key = (leaf.sharding, leaf.shape)
    distinct = cache.get(key)
    if distinct is None:
        distinct = cache[key] = _distinct(leaf)
    return (leaf, *distinct)


def _distinct(leaf: Any) -> DistinctShards:
    """Return the shards of this process to use, so that each box of the array occurs once."""
    boxes = device_boxes(leaf.sharding, leaf.shape)
    devices = [next(iter(shard.devices())) for shard in local_arrays(leaf)]
    numbers = list({boxes[device]: i for i, device in reversed(list(enumerate(devices)))}.values())
    pinned = [pinned_host(devices[i]) for i in numbers]
    viewed = all(device.platform == "cpu" for device in devices) and not any(pinned)
    return DistinctShards(numbers, [boxes[devices[i]] for i in numbers], viewed, pinned)


def _move(moving: Sequence[_Moving]) -> None:
    """Start all transfers; XLA orders them before the next use or donation of the arrays."""
    if not moving:
        return
    import jax

    copies = jax.device_put(
        [each.data for each in moving], [each.pinned for each in moving], may_alias=False
    )
    for copy, each in zip(copies, moving, strict=True):
        each.shards[each.position] = copy
