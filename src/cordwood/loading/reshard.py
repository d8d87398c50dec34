"""Restoring of leaves in parts: stored as any boxes, loaded as the shards of any sharding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Box, Inline, Leaf, Pieces, Span
from cordwood.keypath import path_label
from cordwood.loading.convert_leaf import (
    convert_dtype,
    convert_inline,
    convert_kind,
    transpose_copy,
)
from cordwood.loading.device_batches import group_requests
from cordwood.loading.leaf_target import Target
from cordwood.loading.read_boxes import read_boxes
from cordwood.loading.read_context import ReadContext
from cordwood.message_text import first_lines
from cordwood.plan.load_boxes import BoxRequest
from cordwood.plan.transpose_leaves import permute_shape, stored_box
from cordwood.sharding.boxes import whole_box
from cordwood.sharding.sharding_errors import explain_sharding_error

Array: TypeAlias = np.ndarray[Any, Any]
DeviceBoxes: TypeAlias = Mapping[int, Mapping[Any, Box]]  # by position; by device

_ON_DEVICE = frozenset({"jax", "prng_key"})


def are_stored_in_order(targets: Iterable[Target]) -> bool:
    """Return True if all stored leaves are raw bytes in the order of their elements."""
    storages = [target[0][4] for target in targets]
    if not {Pieces, Inline}.issuperset(map(type, storages)):
        return False
    first = [storage[0][0] for storage in storages if type(storage) is Pieces and storage[0]]
    return {Span}.issuperset(map(type, map(itemgetter(0), first)))


def device_boxes(targets: Sequence[Target]) -> dict[int, dict[Any, Box]]:
    """Return the boxes that this process's devices need, by position of the target and device.

    Leaves that are whole on one device have no entry. The boxes are in the stored order of axes,
    also for leaves that are transposed.

    Raises:
        MismatchError: a leaf cannot be cut as its sharding says; the message names all of them.
    """
    placed = [i for i, target in enumerate(targets) if target[4] is not None]
    if not placed:
        return {}
    from cordwood.devices.sharded_arrays import key_boxes, local_boxes, sharding_of, spans_devices

    result: dict[int, dict[Any, Box]] = {}
    cache: dict[Any, dict[Any, Box] | None] = {}
    problems = []
    for i in placed:
        leaf, kind, _, _, requested, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
        key = requested, shape, impl, axes
        if key not in cache:
            sharding = sharding_of(requested)
            try:
                if impl is not None:
                    cache[key] = key_boxes(sharding, shape, impl)
                elif requested is not sharding or spans_devices(sharding):
                    local = local_boxes(sharding, shape)
                    cache[key] = {device: stored_box(box, axes) for device, box in local.items()}
                else:
                    cache[key] = None
            except (ValueError, IndexError) as e:
                reason = explain_sharding_error(shape, sharding, None, e)
                problems.append(f"{path_label(leaf.key_path)}: {reason}")
                continue
        boxes = cache[key]
        if boxes is not None:
            result[i] = boxes
    if problems:
        raise MismatchError(f"shardings do not fit their leaves:\n{first_lines(problems, 20)}")
    return result


def restore_boxes(
    reading: ReadContext,
    targets: Sequence[Target],
    boxes: DeviceBoxes,
    *,
    alias: bool,
    budget_bytes: int | None,
) -> list[Any]:
    """Return the values of the targets, in their order.

    Args:
        reading: the open sources, and the options of reading.
        targets: the leaves and what to make of them.
        boxes: the result of `device_boxes`.
        alias: on CPU, jax may use the memory that the leaves were read into.
        budget_bytes: the size of a group of leaves that are read together (a larger leaf is a
            group of its own). The third group is read when the first one has arrived on its
            devices. None: all leaves are read at once.
    """
    wants = [_request(target.leaf, boxes.get(i)) for i, target in enumerate(targets)]
    if budget_bytes is None:
        return _restore(reading, targets, wants, boxes, alias=alias)
    from cordwood.devices.to_jax import wait_until_ready

    values: list[Any] = [None] * len(targets)
    moving: list[Any] = []
    for group in group_requests(wants, budget_bytes):
        arrived = _restore(
            reading,
            [targets[i] for i in group],
            [wants[i] for i in group],
            {n: boxes[i] for n, i in enumerate(group) if i in boxes},
            alias=alias,
        )
        for i, value in zip(group, arrived, strict=True):
            values[i] = value
        wait_until_ready(moving)
        moving = arrived
    return values


def _request(leaf: Leaf, boxes: Mapping[Any, Box] | None) -> BoxRequest:
    if boxes is None:
        return BoxRequest(leaf, (whole_box(leaf.shape),))
    return BoxRequest(leaf, tuple(dict.fromkeys(boxes.values())))


def _restore(
    reading: ReadContext,
    targets: Sequence[Target],
    wants: Sequence[BoxRequest],
    boxes: DeviceBoxes,
    *,
    alias: bool,
) -> list[Any]:
    stored = [i for i, want in enumerate(wants) if not isinstance(want.leaf.storage, Inline)]
    arrays = dict(zip(stored, read_boxes(reading, [wants[i] for i in stored]), strict=True))
    values: list[Any] = []
    puts: list[int] = []
    for i, target in enumerate(targets):
        storage = target.leaf.storage
        on_device = target.kind in _ON_DEVICE
        if on_device:
            puts.append(i)
        if isinstance(storage, Inline):
            value = convert_inline(storage.value, target)
            values.append([value] * len(wants[i].boxes) if on_device else value)
            continue
        parts = arrays.pop(i)
        if target.dtype != target.leaf.dtype and target.dtype:
            parts = [convert_dtype(part, target) for part in parts]
        if target.axes is not None:
            parts = [transpose_copy(part, target.axes) for part in parts]
        values.append(parts if on_device else convert_kind(parts[0], target))
    _put(values, puts, targets, wants, boxes, alias=alias)
    return values


def _put(
    values: list[Any],
    puts: Sequence[int],
    targets: Sequence[Target],
    wants: Sequence[BoxRequest],
    boxes: DeviceBoxes,
    *,
    alias: bool,
) -> None:
    """Replace the arrays of boxes in `values` by the jax arrays that they are parts of."""
    if not puts:
        return
    import jax

    from cordwood.devices.sharded_arrays import Shards, put_shards, sharding_of
    from cordwood.devices.to_jax import DevicePut, put_all

    whole_ones = []
    for i in puts:
        leaf, kind, dtype, weak_type, requested, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        if i in boxes:
            arrays = _by_device(wants[i].boxes, values[i], boxes[i])
            sharding = sharding_of(requested)
            shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
            shards = Shards(shape, arrays, sharding, dtypes.to_numpy(dtype), weak_type, impl)
            values[i] = put_shards(shards, alias=alias)
            if requested is not sharding:  # a Format, which has a layout too
                values[i] = jax.device_put(values[i], requested)
        else:
            (array,) = values[i]
            whole_ones.append((i, DevicePut(array, weak_type, requested, impl)))
    arrays_on_device = put_all([put for _, put in whole_ones], alias=alias)
    for (i, _), value in zip(whole_ones, arrays_on_device, strict=True):
        values[i] = value


def _by_device(
    unique_boxes: Sequence[Box], arrays: Sequence[Array], boxes: Mapping[Any, Box]
) -> dict[Any, Array]:
    """Return the array for each device."""
    if len(unique_boxes) == len(boxes):  # no box twice: they are in the order of the devices
        return dict(zip(boxes, arrays, strict=True))
    array_of = dict(zip(unique_boxes, arrays, strict=True))
    return {device: array_of[box] for device, box in boxes.items()}
