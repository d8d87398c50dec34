"""Copies of shards: to pinned host memory, or on their own devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.devices.device_memory import is_in_accelerator_memory
from cordwood.tree.leaves import single_device_array


def copy_to_host(shards: Sequence[Any], host_shardings: Sequence[Any]) -> list[Any]:
    """Start the copies of shards to host memory, in one call; return the copies.

    XLA orders the transfers before the next use or donation of the shards.

    Args:
        shards: jax.Arrays on one device each.
        host_shardings: for each the sharding in host memory; None where the device has none: then
            the result is a numpy array, and complete.
    """
    import jax

    copies: list[Any] = [None] * len(shards)
    numbers = [i for i, sharding in enumerate(host_shardings) if sharding is not None]
    for i in set(range(len(shards))).difference(numbers):
        copies[i] = single_device_array(shards[i])
    if numbers:
        targets = [host_shardings[i] for i in numbers]
        arrays = jax.device_put([shards[i] for i in numbers], targets, may_alias=False)
        for i, array in zip(numbers, arrays, strict=True):
            copies[i] = array
    return copies


def copy_on_device(shards: Sequence[Any]) -> list[Any]:
    """Return copies of shards on their own devices, which stay if the shards are donated.

    Raises ValueError for shards in host memory, and RuntimeError if a device has no room.
    """
    import jax

    if not all(is_in_accelerator_memory(shard.sharding) for shard in shards):
        raise ValueError("some of them are in host memory")
    copies: list[Any] = jax.device_put(
        list(shards), [shard.sharding for shard in shards], may_alias=False
    )
    return copies
