"""The memory of devices: which device and memory an array is in, and pinned host memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from cordwood.tree.leaves import is_cpu, pinned_host


def sharding_of(placement: Any) -> Any:
    """Return a jax Sharding as it is, or the sharding of a jax Format (which adds a layout)."""
    return placement.sharding if hasattr(placement, "layout") else placement


def default_device() -> Any:
    """Return the device that jax puts uncommitted arrays on."""
    import jax

    return next(iter(jax.device_put(np.zeros((), np.int32)).devices()))


def is_in_accelerator_memory(sharding: Any) -> bool:
    """Return True if arrays of a sharding (None: the default one) are in memory of accelerators.

    Arrays that a sharding keeps in host memory are not.
    """
    if sharding is None:
        return not is_cpu(default_device())
    sharding = sharding_of(sharding)
    device = next(iter(sharding.device_set))
    return not is_cpu(device) and sharding.memory_kind in (None, device.default_memory().kind)


def local_device(shardings: Iterable[Any]) -> Any | None:
    """Return a device of this process that one of the shardings uses; None if there is none.

    None among the shardings stands for the default device.
    """
    for sharding in shardings:
        if sharding is None:
            return default_device()
        for device in sharding_of(sharding).addressable_devices:
            return device
    return None


def copies_host_memory(memory: np.ndarray, device: Any) -> bool:
    """Return True if an array on a device keeps its values when the memory it is of changes.

    A device that shares the memory of the host might use it as it is.

    Args:
        memory: writable host memory, uint8[n]; its content is lost.
        device: the device.
    """
    import jax

    memory[:] = 0
    array = jax.block_until_ready(jax.device_put(memory, device))  # type: ignore[no-untyped-call]
    memory[:] = 1
    return not np.any(jax.device_get(array))


class _HostMemory(NamedTuple):
    """The memory of a jax.Array as numpy takes it; the result of numpy keeps the array alive."""

    array: Any
    address: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.array.shape,
            "typestr": "|u1",
            "data": (self.address, False),
        }


def pinned_bytes(size_bytes: int, device: Any) -> np.ndarray | None:
    """Return writable pinned host memory of a device, as uint8[size_bytes]; None if there is none.

    It is the memory of a jax.Array, which nothing else uses. The content is undefined.
    """
    host = pinned_host(device)
    if host is None:
        return None
    import jax

    try:
        array = jax.device_put(np.empty(size_bytes, np.uint8), host, may_alias=False)
        address = array.block_until_ready().unsafe_buffer_pointer()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
    if np.asarray(array).ctypes.data != address:
        return None  # it has no address in this process
    return np.asarray(_HostMemory(array, address))
