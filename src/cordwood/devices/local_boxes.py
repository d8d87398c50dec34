"""The boxes of an array that a sharding puts on the devices of this process."""

from __future__ import annotations

import functools
from typing import Any

from cordwood.index import Box
from cordwood.sharding.boxes import boxes_of


def spans_devices(sharding: Any) -> bool:
    """Return True unless a sharding is one device of this process and its default memory."""
    if type(sharding).__name__ != "SingleDeviceSharding" or not sharding.is_fully_addressable:
        return True
    (device,) = sharding.device_set
    return sharding.memory_kind not in (None, device.default_memory().kind)


def local_boxes(sharding: Any, shape: tuple[int, ...]) -> dict[Any, Box]:
    """Return the box of an array of that shape on each device of this process.

    Raises ValueError for a shape that the sharding cannot divide.
    """
    return boxes_of(sharding.addressable_devices_indices_map(shape), shape)


def key_boxes(sharding: Any, data_shape: tuple[int, ...], prng_impl: str) -> dict[Any, Box]:
    """Return the boxes of the key data of a PRNG key array with that sharding."""
    shape = key_shape(data_shape, prng_impl)
    inner_shape = data_shape[len(shape) :]
    return {
        device: Box((*box.start, *[0] * len(inner_shape)), (*box.stop, *inner_shape))
        for device, box in local_boxes(sharding, shape).items()
    }


def key_shape(data_shape: tuple[int, ...], prng_impl: str) -> tuple[int, ...]:
    """Return the shape of a PRNG key array whose key data has that shape."""
    return data_shape[: len(data_shape) - len(key_type(prng_impl)[1])]


@functools.cache
def key_type(impl: str) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype of PRNG keys, and the shape of the data of one key."""
    import jax

    key = jax.eval_shape(lambda: jax.random.key(0, impl=impl))
    return key.dtype, tuple(jax.eval_shape(jax.random.key_data, key).shape)
