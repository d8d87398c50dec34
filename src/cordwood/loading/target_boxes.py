"""The boxes of leaves that the devices of this process need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cordwood.errors import MismatchError
from cordwood.index import Box
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import Boxes
from cordwood.loading.load_target import Target
from cordwood.message_text import first_lines
from cordwood.sharding.partition_rules import explain_sharding_error

DeviceBoxes: TypeAlias = Mapping[int, Mapping[Any, Box]]  # by position of the target; by device

ON_DEVICE = frozenset({"jax", "prng_key"})


def boxes_of_targets(targets: Sequence[Target]) -> dict[int, dict[Any, Box]]:
    """Return the boxes that this process's devices need, by position of the target and device.

    Leaves that are whole on one device have no entry.

    Raises:
        MismatchError: a leaf cannot be cut as its sharding says; the message names all of them.
    """
    placed = [
        i for i, target in enumerate(targets) if target[4] is not None and target[1] in ON_DEVICE
    ]
    if not placed:
        return {}
    from cordwood.devices.device_memory import sharding_of
    from cordwood.devices.local_boxes import key_boxes, local_boxes, spans_devices

    result: dict[int, dict[Any, Box]] = {}
    cache: dict[Any, dict[Any, Box] | None] = {}
    problems = []
    for i in placed:
        leaf, kind, _, _, requested = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        key = requested, leaf.shape, impl
        if key not in cache:
            sharding = sharding_of(requested)
            try:
                if impl is not None:
                    cache[key] = key_boxes(sharding, leaf.shape, impl)
                elif requested is not sharding or spans_devices(sharding):
                    cache[key] = local_boxes(sharding, leaf.shape)
                else:
                    cache[key] = None
            except (ValueError, IndexError) as e:
                reason = explain_sharding_error(leaf.shape, sharding, None, e)
                problems.append(f"{path_label(leaf.key_path)}: {reason}")
                continue
        boxes = cache[key]
        if boxes is not None:
            result[i] = boxes
    if problems:
        raise MismatchError(f"shardings do not fit their leaves:\n{first_lines(problems, 20)}")
    return result


def unique_boxes(on_devices: DeviceBoxes) -> Boxes:
    """Return the boxes to read of each leaf: each one once, in the order of the devices."""
    distinct = {id(boxes): boxes for boxes in on_devices.values()}  # shared by leaves cut alike
    unique = {key: tuple(dict.fromkeys(boxes.values())) for key, boxes in distinct.items()}
    return {i: unique[id(boxes)] for i, boxes in on_devices.items()}


def by_device(arrays: Sequence[np.ndarray], boxes: Mapping[Any, Box]) -> dict[Any, np.ndarray]:
    """Return the array for each device. `arrays` has one for each distinct box."""
    if len(arrays) == len(boxes):  # no box twice: they are in the order of the devices
        return dict(zip(boxes, arrays, strict=True))
    array_of = dict(zip(dict.fromkeys(boxes.values()), arrays, strict=True))
    return {device: array_of[box] for device, box in boxes.items()}
