"""Restoring of targets: reads the leaves, and makes of each the value that its target says.

A leaf is read whole, or as the boxes of it that this process's devices need. Leaves on their way
to devices with memory of their own are read in groups, which limits the host memory: while one
group is copied to the devices, the next one is read, so the host holds two groups. A load to the
CPU needs no groups: jax uses the memory that the leaves were read into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Box, Inline, Leaf
from cordwood.io.verify_files import check_sources
from cordwood.keypath import path_label
from cordwood.loading.cast import (
    convert_dtype,
    convert_inline,
    convert_kind,
    transpose_copy,
)
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.leaf_target import Target, check_x64, target_size_bytes
from cordwood.message_text import first_lines
from cordwood.plan.select_leaves import permute_shape, stored_box
from cordwood.sharding.boxes import element_count
from cordwood.sharding.partition_rules import explain_sharding_error

Array: TypeAlias = np.ndarray[Any, Any]
Boxes: TypeAlias = Mapping[int, Sequence[Box]]  # by position of the target
DeviceBoxes: TypeAlias = Mapping[int, Mapping[Any, Box]]  # by position of the target; by device

GROUP_BYTES = 1 << 30  # of a group
_ON_DEVICE = frozenset({"jax", "prng_key"})


def restore_targets(
    reader: LeafReader,
    targets: Sequence[Target],
    *,
    mmap: bool = False,
    verify: bool = True,
    alias: bool = True,
    budget_bytes: int | None = None,
) -> list[Any]:
    """Return the values of the targets, in their order.

    Args:
        reader: the open checkpoint.
        targets: leaves of its index, and what to make of them.
        mmap: map the files instead of reading them.
        verify: check digests.
        alias: on CPU, jax may use the memory that the leaves were read into.
        budget_bytes: the size of a group of leaves that are read together (a larger leaf is a
            group of its own). The third group is read when the first one has arrived on its
            devices. None: GROUP_BYTES if the devices have their own memory, else no groups.

    Raises:
        MismatchError: a target is a 64-bit jax array while jax's 64-bit types are off, or a
            conversion to integers would change a value, or a sharding does not fit its leaf.
        CorruptionError: with `verify`, stored bytes do not match their digests.
    """
    check_x64(reader.files[0].name if reader.files else "", targets)
    on_devices = device_boxes(targets)
    unique = _unique_boxes(on_devices)
    leaves = reader.with_pieces([target[0] for target in targets], unique)
    if mmap and verify:
        check_sources(reader.index, reader.files, reader.digests)
    if budget_bytes is None and _leaves_the_host(targets):
        budget_bytes = GROUP_BYTES
    if budget_bytes is None:
        values = _read_and_convert(reader, targets, leaves, unique, mmap=mmap, verify=verify)
        _put(values, targets, on_devices, alias=alias)
        return values
    from cordwood.devices.to_jax import wait_until_ready

    values = [None] * len(targets)
    moving: list[Any] = []
    for group in _groups(targets, leaves, unique, budget_bytes):
        some = [targets[i] for i in group]
        arrived = _read_and_convert(
            reader,
            some,
            [leaves[i] for i in group],
            {n: unique[i] for n, i in enumerate(group) if i in unique},
            mmap=mmap,
            verify=verify,
        )
        boxes = {n: on_devices[i] for n, i in enumerate(group) if i in on_devices}
        _put(arrived, some, boxes, alias=alias)
        for i, value in zip(group, arrived, strict=True):
            values[i] = value
        wait_until_ready(moving)
        moving = arrived
    return values


def _leaves_the_host(targets: Sequence[Target]) -> bool:
    shardings = [target.sharding for target in targets if target.kind in _ON_DEVICE]
    if not shardings:
        return False
    from cordwood.devices.to_jax import any_off_cpu

    return any_off_cpu(shardings)


def device_boxes(targets: Sequence[Target]) -> dict[int, dict[Any, Box]]:
    """Return the boxes that this process's devices need, by position of the target and device.

    Leaves that are whole on one device have no entry. The boxes are in the stored order of axes,
    also for leaves that are transposed.

    Raises:
        MismatchError: a leaf cannot be cut as its sharding says; the message names all of them.
    """
    placed = [
        i for i, target in enumerate(targets) if target[4] is not None and target[1] in _ON_DEVICE
    ]
    if not placed:
        return {}
    from cordwood.devices.to_jax import key_boxes, local_boxes, sharding_of, spans_devices

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


def _unique_boxes(on_devices: DeviceBoxes) -> Boxes:
    """Return the boxes to read of each leaf: each one once, in the order of the devices."""
    unique: dict[int, tuple[Box, ...]] = {}
    cache: dict[int, tuple[Box, ...]] = {}  # leaves that are cut alike share their boxes
    for i, boxes in on_devices.items():
        some = cache.get(id(boxes))
        if some is None:
            some = cache[id(boxes)] = tuple(dict.fromkeys(boxes.values()))
        unique[i] = some
    return unique


def _groups(
    targets: Sequence[Target], leaves: Sequence[Leaf], boxes: Boxes, budget_bytes: int
) -> list[list[int]]:
    """Return the positions of the targets in groups, in the order of their bytes in the files.

    A group has at most `budget_bytes` bytes, or it is a single larger leaf.
    """
    groups: list[list[int]] = []
    free_bytes = 0
    for i in sorted(range(len(targets)), key=lambda i: _first_byte(leaves[i])):
        size = target_size_bytes(targets[i])
        if i in boxes:
            size = sum(map(element_count, boxes[i])) * dtypes.itemsize(leaves[i].dtype)
        if not groups or size > free_bytes:
            groups.append([])
            free_bytes = budget_bytes
        groups[-1].append(i)
        free_bytes -= size
    return groups


def _first_byte(leaf: Leaf) -> tuple[int, int]:
    """Return where a leaf begins: its source and offset."""
    if isinstance(leaf.storage, Inline) or not leaf.storage.pieces:
        return 0, 0
    return leaf.storage.pieces[0][1:3]


def _read_and_convert(
    reader: LeafReader,
    targets: Sequence[Target],
    leaves: Sequence[Leaf],
    boxes: Boxes,
    *,
    mmap: bool,
    verify: bool,
) -> list[Any]:
    """Return the values on the host; of a leaf with boxes, a list of their arrays."""
    values: list[Any] = [None] * len(targets)
    stored: list[int] = []
    for i, leaf in enumerate(leaves):
        storage = leaf[4]
        if type(storage) is not Inline:
            stored.append(i)
            continue
        values[i] = convert_inline(storage.value, targets[i])
        if i in boxes:
            values[i] = [values[i]] * len(boxes[i])
    cuts = {n: boxes[i] for n, i in enumerate(stored) if i in boxes} if boxes else boxes
    arrays = reader.read([leaves[i] for i in stored], cuts, mmap=mmap, verify=verify)
    arrays.reverse()  # a stored array is dropped once it is converted
    for i in stored:
        target = targets[i]
        leaf, kind, dtype, _, _, axes = target
        if i in boxes:
            values[i] = [_converted(arrays.pop(), target) for _ in boxes[i]]
            continue
        array = arrays.pop()
        if axes is not None or (dtype != leaf[3] and dtype):
            array = _converted(array, target, as_view=mmap)
        values[i] = array if kind in _ARRAYS else convert_kind(array, target)
    return values


_ARRAYS = frozenset({"jax", "prng_key", "numpy"})


def _converted(array: Array, target: Target, *, as_view: bool = False) -> Array:
    """Return the array with the dtype and the axes of the target."""
    if target.dtype != target.leaf.dtype and target.dtype:
        array = convert_dtype(array, target)
    if target.axes is None:
        return array
    return array.transpose(target.axes) if as_view else transpose_copy(array, target.axes)


def _put(values: list[Any], targets: Sequence[Target], boxes: DeviceBoxes, *, alias: bool) -> None:
    """Replace the host arrays in `values` that belong on devices by jax arrays."""
    on_device = [i for i, target in enumerate(targets) if target[1] in _ON_DEVICE]
    if not on_device:
        return
    import jax

    from cordwood.devices.to_jax import DevicePut, Shards, put_all, put_shards, sharding_of

    whole: list[int] = []
    puts: list[DevicePut] = []
    for i in on_device:
        leaf, kind, dtype, weak_type, requested, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        if i not in boxes:
            whole.append(i)
            puts.append(DevicePut(values[i], weak_type, requested, impl))
            continue
        arrays = _by_device(values[i], boxes[i])
        sharding = sharding_of(requested)
        shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
        shards = Shards(shape, arrays, sharding, dtypes.to_numpy(dtype), weak_type, impl)
        values[i] = put_shards(shards, alias=alias)
        if requested is not sharding:  # a Format, which has a layout too
            values[i] = jax.device_put(values[i], requested)
    for i, value in zip(whole, put_all(puts, alias=alias), strict=True):
        values[i] = value


def _by_device(arrays: Sequence[Array], boxes: Mapping[Any, Box]) -> dict[Any, Array]:
    """Return the array for each device. `arrays` has one for each distinct box."""
    if len(arrays) == len(boxes):  # no box twice: they are in the order of the devices
        return dict(zip(boxes, arrays, strict=True))
    array_of = dict(zip(dict.fromkeys(boxes.values()), arrays, strict=True))
    return {device: array_of[box] for device, box in boxes.items()}
