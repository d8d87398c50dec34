"""The shards of jax.Arrays on this process, as numpy arrays or on their devices.

A shard on CPU is not copied: a numpy view of it keeps its buffer in use. Until the view is dropped,
a step that donates the array computes into new memory, and a deletion frees nothing. A shard on an
accelerator is copied to pinned host memory; `io/host_copies.py` decides when.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.devices.private_jax import local_arrays
from cordwood.index import Box
from cordwood.sharding.boxes import device_boxes, overlaps, shape_of, whole_box, within
from cordwood.tree.leaves import (
    has_numpy_view,
    is_cpu,
    is_jax_array,
    pinned_host,
    single_device_array,
)


class LocalShards:
    """The distinct shards on CPU devices of one jax.Array that this process holds.

    Parts are views, which keep the buffers in use.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each shard holds.
        shards: the shards: numpy arrays, or jax.Arrays on one device each.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, boxes: Sequence[Box], shards: list[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._boxes = boxes
        self._shards = shards
        self._lock = threading.Lock()

    def part(self, box: Box) -> np.ndarray:
        """Return the elements of a box: a view, if one shard holds them all.

        Raises ValueError for a box that is not wholly on this process.
        """
        pieces = overlaps(box, self._boxes)
        common, number = pieces[0] if pieces else (None, -1)
        if common == box:
            around = self._boxes[number]
            if around == box:
                shard = self._shards[number]
                whole = shard if isinstance(shard, np.ndarray) else single_device_array(shard)
                return np.asarray(whole)[...]  # an array even of no dimensions, not a scalar
            view: np.ndarray = self._host_shard(number)[within(box, around)]
            return view
        result = np.empty(shape_of(box), self.dtype)
        for common, number in pieces:
            result[within(common, box)] = self._host_shard(number)[
                within(common, self._boxes[number])
            ]
        return result

    def _host_shard(self, number: int) -> np.ndarray:
        """Return a shard, and keep it on the host: other parts of it will be needed."""
        with self._lock:
            shard = self._shards[number]
            if not isinstance(shard, np.ndarray):
                shard = self._shards[number] = single_device_array(shard)
        return np.asarray(shard)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.part(whole_box(self.shape))
        return array if dtype is None and not copy else np.array(array, dtype, copy=copy)


class DistinctShards(NamedTuple):
    """The distinct shards on this process of arrays of one shape and sharding."""

    numbers: list[int]  # positions among the shards of the process
    boxes: list[Box]
    on_cpu: bool  # all of them are on CPU devices
    host_shardings: list[Any]  # in host memory, to copy them to; None: the device has none


DistinctShardsOf: TypeAlias = dict[tuple[Any, tuple[int, ...]], DistinctShards]


class ArrayShards(NamedTuple):
    """A jax.Array and its distinct shards on this process, each on one device."""

    array: Any  # of a PRNG key array the key data
    shards: list[Any]
    boxes: list[Box]
    on_cpu: bool
    host_shardings: list[Any]

    @property
    def nbytes(self) -> int:
        """The size of the whole array."""
        size_bytes: int = math.prod(self.array.shape) * self.array.dtype.itemsize
        return size_bytes


def distinct_shards(array: Any, cache: DistinctShardsOf) -> ArrayShards:
    """Return the shards of a jax.Array on this process, such that each box occurs once.

    Args:
        array: the array, which may be a PRNG key array.
        cache: the distinct shards of the arrays so far.
    """
    if not isinstance(array.dtype, np.dtype):
        import jax

        array = jax.random.key_data(array)
    key = (array.sharding, array.shape)
    distinct = cache.get(key)
    if distinct is None:
        distinct = cache[key] = _distinct(array)
    arrays = local_arrays(array)
    return ArrayShards(array, [arrays[number] for number in distinct.numbers], *distinct[1:])


def _distinct(array: Any) -> DistinctShards:
    boxes = device_boxes(array.sharding, array.shape)
    devices = [next(iter(shard.devices())) for shard in local_arrays(array)]
    numbers = list({boxes[device]: i for i, device in reversed(list(enumerate(devices)))}.values())
    host_shardings = [pinned_host(devices[i]) for i in numbers]
    on_cpu = all(map(is_cpu, devices))
    return DistinctShards(numbers, [boxes[devices[i]] for i in numbers], on_cpu, host_shardings)


def local_shards(shards: ArrayShards, *, views: bool) -> LocalShards:
    """Return the shards of an array on CPU devices.

    Args:
        shards: the shards.
        views: take numpy views of their memory now, which keep their values even if the array is
            donated or deleted. False: when a part is needed.
    """
    array, arrays, boxes, _, _ = shards
    if views:
        to_host = np.asarray if has_numpy_view(array.dtype) else single_device_array
        arrays = list(map(to_host, arrays))
    return LocalShards(array.shape, array.dtype, boxes, arrays)


def accelerator_shards(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves; jax.Arrays on accelerators as ArrayShards."""
    cache: DistinctShardsOf = {}
    result = [*leaves]
    for i, leaf in enumerate(leaves):
        if is_jax_array(leaf):
            shards = distinct_shards(leaf, cache)
            result[i] = leaf if shards.on_cpu else shards
    return result
