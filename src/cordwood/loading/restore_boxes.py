"""Leaves in parts: stored in any boxes, or wanted as the shards of any sharding, or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Box, Inline, Leaf, Pieces, Span
from cordwood.keypath import format_path
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
from cordwood.plan.load_boxes import BoxRequest
from cordwood.plan.transpose_leaves import permute_shape, stored_box
from cordwood.sharding.boxes import whole_box
from cordwood.sharding.sharding_errors import explain_sharding_error

Array: TypeAlias = np.ndarray[Any, Any]
DeviceBoxes: TypeAlias = Mapping[int, Mapping[Any, Box]]  # by position; by device

_ON_DEVICE = frozenset({"jax", "prng_key"})


def are_stored_in_order(targets: Iterable[Target]) -> bool:
    """Whether all that is stored lies in the order of its elements, in raw bytes."""
    storages = [target[0][4] for target in targets]
    if not {Pieces, Inline}.issuperset(map(type, storages)):
        return False
    first = [storage[0][0] for storage in storages if type(storage) is Pieces and storage[0]]
    return {Span}.issuperset(map(type, map(itemgetter(0), first)))


def device_boxes(targets: Sequence[Target]) -> dict[int, dict[Any, Box]]:
    """Return what this process's devices need of the leaves that are not simply on one of them.

    The boxes are of the leaves as they are stored, also where those are transposed.

    Raises MismatchError for leaves that cannot be cut as their shardings say; names them all.
    """
    placed = [i for i, target in enumerate(targets) if target[4] is not None]
    if not placed:
        return {}
    from cordwood.devices.sharded_arrays import key_boxes, local_boxes, sharding_of, spans_devices

    found: dict[int, dict[Any, Box]] = {}
    known: dict[Any, dict[Any, Box] | None] = {}
    problems = []
    for i in placed:
        leaf, kind, _, _, given, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
        key = given, shape, impl, axes
        if key not in known:
            sharding = sharding_of(given)
            try:
                if impl is not None:
                    known[key] = key_boxes(sharding, shape, impl)
                elif given is not sharding or spans_devices(sharding):
                    local = local_boxes(sharding, shape)
                    known[key] = {device: stored_box(box, axes) for device, box in local.items()}
                else:
                    known[key] = None
            except (ValueError, IndexError) as e:
                what = explain_sharding_error(shape, sharding, None, e)
                problems.append(f"  {format_path(leaf.key_path) or 'the root'}: {what}")
                continue
        boxes = known[key]
        if boxes is not None:
            found[i] = boxes
    if problems:
        more = [f"  ... and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise MismatchError(
            "shardings do not fit the leaves that they are for:\n"
            + "\n".join([*problems[:20], *more])
        )
    return found


def restore_boxes(
    reading: ReadContext,
    targets: Sequence[Target],
    boxes: DeviceBoxes,
    *,
    alias: bool,
    budget_bytes: int | None,
) -> list[Any]:
    """The values of the targets, in their order.

    Args:
        reading: what to read from, and how.
        targets: what each leaf is to become.
        boxes: what `device_boxes` returned.
        alias: whether jax may use the memory that was read into, on CPU.
        budget_bytes: read groups of leaves of at most so many bytes (or of one leaf), the third
            only when the first has arrived on its devices. None: all at once.
    """
    wants = [_want(target.leaf, boxes.get(i)) for i, target in enumerate(targets)]
    if budget_bytes is None:
        return _restore(reading, targets, wants, boxes, alias=alias)
    from cordwood.devices.to_jax import wait_until_ready

    values: list[Any] = [None] * len(targets)
    moving: list[Any] = []
    for group in group_requests(wants, budget_bytes):
        found = _restore(
            reading,
            [targets[i] for i in group],
            [wants[i] for i in group],
            {n: boxes[i] for n, i in enumerate(group) if i in boxes},
            alias=alias,
        )
        for i, value in zip(group, found, strict=True):
            values[i] = value
        wait_until_ready(moving)
        moving = found
    return values


def _want(leaf: Leaf, boxes: Mapping[Any, Box] | None) -> BoxRequest:
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
    """In place of the arrays of boxes, the jax arrays that they make up."""
    if not puts:
        return
    import jax

    from cordwood.devices.sharded_arrays import Shards, put_shards, sharding_of
    from cordwood.devices.to_jax import DevicePut, put_all

    whole_ones = []
    for i in puts:
        leaf, kind, dtype, weak_type, given, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        if i in boxes:
            arrays = _by_device(wants[i].boxes, values[i], boxes[i])
            sharding = sharding_of(given)
            shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
            shards = Shards(shape, arrays, sharding, dtypes.to_numpy(dtype), weak_type, impl)
            values[i] = put_shards(shards, alias=alias)
            if given is not sharding:  # a layout of its own
                values[i] = jax.device_put(values[i], given)
        else:
            (array,) = values[i]
            whole_ones.append((i, DevicePut(array, weak_type, given, impl)))
    found = put_all([put for _, put in whole_ones], alias=alias)
    for (i, _), value in zip(whole_ones, found, strict=True):
        values[i] = value


def _by_device(
    wanted: Sequence[Box], arrays: Sequence[Array], boxes: Mapping[Any, Box]
) -> dict[Any, Array]:
    """Which array each device is to hold."""
    if len(wanted) == len(boxes):  # no box twice: they are in the order of their devices
        return dict(zip(boxes, arrays, strict=True))
    array_of = dict(zip(wanted, arrays, strict=True))
    return {device: array_of[box] for device, box in boxes.items()}
