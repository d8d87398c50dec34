"""The restore of leaves from an open checkpoint: read, convert, and put on devices.

A leaf is read whole, or as the boxes of it that this process's devices need. Leaves on their way
to accelerators are read in groups, into memory that is used again (`transfer_ring.py`): while one
group is sent, the next one is read. A load to the CPU needs no groups: jax uses the memory that the
leaves were read into.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from cordwood import dtypes
from cordwood.index import Inline, Leaf
from cordwood.io.find_damage import check_sources
from cordwood.loading.cast import convert_dtype, convert_inline, convert_kind
from cordwood.loading.check_x64 import check_x64
from cordwood.loading.leaf_reader import Boxes, LeafReader
from cordwood.loading.load_target import Target, target_size_bytes
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.plan.load_pieces import first_byte
from cordwood.sharding.boxes import element_count

if TYPE_CHECKING:
    from cordwood.loading.transfer_ring import TransferRing
from cordwood.loading.target_boxes import (
    ON_DEVICE,
    DeviceBoxes,
    boxes_of_targets,
    by_device,
    unique_boxes,
)


def restore_targets(
    reader: LeafReader,
    targets: Sequence[Target],
    *,
    mmap: bool = False,
    verify: bool = True,
    alias: bool = True,
    group_bytes: int | None = None,
) -> list[Any]:
    """Return the values of the targets, in their order.

    Args:
        reader: the open checkpoint.
        targets: leaves of its index, and what to make of them.
        mmap: map the files instead of reading them.
        verify: check digests.
        alias: on CPU, jax may use the memory that the leaves were read into.
        group_bytes: the size of a group of leaves that are sent to accelerators together (a larger
            leaf is a group of its own). None: a part of the load, as its memory is chosen.

    Raises:
        MismatchError: a target is a 64-bit jax array while jax's 64-bit types are off, or a
            conversion to integers would change a value, or a sharding does not fit its leaf.
        CorruptionError: with `verify`, stored bytes do not match their digests.
    """
    if "unreadable" in map(itemgetter(1), targets):
        require_readable([target.leaf for target in targets], reader.index.naming, name=reader.path)
    check_x64(reader.files[0].name if reader.files else "", targets)
    on_devices = boxes_of_targets(targets)
    unique = unique_boxes(on_devices)
    leaves = reader.with_pieces([target[0] for target in targets], unique)
    if mmap and verify:
        check_sources(reader.index, reader.files, reader.digests)
    sent = _positions_on_accelerators(targets)
    if not sent:
        values = _read_and_convert(reader, targets, leaves, unique, mmap=mmap, verify=verify)
        _put(values, targets, on_devices, alias=alias)
        return values
    from cordwood.devices.device_memory import local_device
    from cordwood.loading.transfer_ring import TransferRing

    sizes = _sizes_on_devices(targets, leaves, unique)
    device = local_device([targets[i].sharding for i in sent])
    ring = TransferRing(sum([sizes[i] for i in sent]), device)
    groups = _groups(sent, leaves, sizes, group_bytes or ring.group_bytes)
    on_host = sorted(set(range(len(targets))).difference(sent))
    values = [None] * len(targets)
    for group in [on_host, *groups] if on_host else groups:
        memory = None if group is on_host else ring
        if memory is not None:
            memory.begin_group()
        some = [targets[i] for i in group]
        group_values = _read_and_convert(
            reader,
            some,
            [leaves[i] for i in group],
            {n: unique[i] for n, i in enumerate(group) if i in unique},
            mmap=mmap,
            verify=verify,
            memory=memory,
        )
        boxes = {n: on_devices[i] for n, i in enumerate(group) if i in on_devices}
        _put(group_values, some, boxes, alias=alias)
        if memory is not None:
            memory.end_group(group_values)
        for i, value in zip(group, group_values, strict=True):
            values[i] = value
    return values


def _positions_on_accelerators(targets: Sequence[Target]) -> list[int]:
    """Return the positions of the targets that go to memory of accelerators."""
    on_device = [i for i, target in enumerate(targets) if target[1] in ON_DEVICE]
    if not on_device:
        return []
    from cordwood.devices.device_memory import is_in_accelerator_memory

    shardings = {id(targets[i][4]): targets[i][4] for i in on_device}
    answers = {key: is_in_accelerator_memory(sharding) for key, sharding in shardings.items()}
    return [i for i in on_device if answers[id(targets[i][4])]]


def _sizes_on_devices(targets: Sequence[Target], leaves: Sequence[Leaf], boxes: Boxes) -> list[int]:
    """Return the bytes that are read for each target, for the devices of this process."""
    return [
        sum(map(element_count, boxes[i])) * dtypes.itemsize(leaves[i].dtype)
        if i in boxes
        else target_size_bytes(target)
        for i, target in enumerate(targets)
    ]


def _groups(
    positions: Sequence[int], leaves: Sequence[Leaf], sizes: Sequence[int], group_bytes: int
) -> list[list[int]]:
    """Return the positions of targets in groups, in the order of their bytes in the files.

    A group has at most `group_bytes` bytes, or it is a single larger leaf.
    """
    groups: list[list[int]] = []
    free_bytes = 0
    for i in sorted(positions, key=lambda i: first_byte(leaves[i])):
        if not groups or sizes[i] > free_bytes:
            groups.append([])
            free_bytes = group_bytes
        groups[-1].append(i)
        free_bytes -= sizes[i]
    return groups


def _read_and_convert(
    reader: LeafReader,
    targets: Sequence[Target],
    leaves: Sequence[Leaf],
    boxes: Boxes,
    *,
    mmap: bool,
    verify: bool,
    memory: TransferRing | None = None,
) -> list[Any]:
    """Return the values on the host; of a leaf with boxes, a list of their arrays.

    `memory` is what stored bytes are read into; None: new memory.
    """
    values: list[Any] = [None] * len(targets)
    stored: list[int] = []
    for i, leaf in enumerate(leaves):
        storage = leaf[4]
        if type(storage) is not Inline:
            stored.append(i)
            continue
        target, value = targets[i], storage.value
        values[i] = convert_inline(value, target) if target.dtype else value
        if i in boxes:
            values[i] = [values[i]] * len(boxes[i])
    cuts = {n: boxes[i] for n, i in enumerate(stored) if i in boxes} if boxes else boxes
    stored_leaves = [leaves[i] for i in stored]
    arrays = reader.read(stored_leaves, cuts, mmap=mmap, verify=verify, memory=memory)
    if boxes:
        remaining = iter(arrays)
        for i in stored:
            values[i] = [next(remaining) for _ in boxes[i]] if i in boxes else next(remaining)
        del remaining
    else:
        for i, array in zip(stored, arrays, strict=True):
            values[i] = array
    del arrays  # a stored array is dropped once it is converted
    for i in stored:
        target = targets[i]
        leaf, kind, dtype, _, _ = target
        if kind in _ARRAYS and (dtype == leaf[3] or not dtype):
            continue  # most leaves
        if i in boxes:
            for n, array in enumerate(values[i]):
                values[i][n] = _converted(array, target)
            continue
        array = values[i] = _converted(values[i], target)
        if kind not in _ARRAYS:
            values[i] = convert_kind(array, target)
    return values


_ARRAYS = frozenset({"jax", "prng_key", "numpy"})


def _converted(array: np.ndarray, target: Target) -> np.ndarray:
    """Return the array with the dtype of the target."""
    if target.dtype != target.leaf.dtype and target.dtype:
        return convert_dtype(array, target)
    return array


def _put(values: list[Any], targets: Sequence[Target], boxes: DeviceBoxes, *, alias: bool) -> None:
    """Replace the host arrays in `values` that belong on devices by jax arrays."""
    on_device = [i for i, target in enumerate(targets) if target[1] in ON_DEVICE]
    if not on_device:
        return
    import jax

    from cordwood.devices.device_memory import sharding_of
    from cordwood.devices.private_jax import DevicePut
    from cordwood.devices.put_arrays import Shards, put_all, put_shards

    whole = [i for i in on_device if i not in boxes] if boxes else on_device
    puts = []
    for i in whole:
        leaf, kind, _, weak_type, requested = targets[i]
        impl = leaf[6] if kind == "prng_key" else None
        puts.append(DevicePut(values[i], weak_type, requested, impl))
    for i in boxes:
        leaf, kind, dtype, weak_type, requested = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        arrays = by_device(values[i], boxes[i])
        sharding = sharding_of(requested)
        shards = Shards(leaf.shape, arrays, sharding, dtypes.to_numpy(dtype), weak_type, impl)
        values[i] = put_shards(shards, alias=alias)
        if requested is not sharding:  # a Format, which has a layout too
            values[i] = jax.device_put(values[i], requested)
    for i, value in zip(whole, put_all(puts, alias=alias), strict=True):
        values[i] = value
