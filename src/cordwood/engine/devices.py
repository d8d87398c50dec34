"""Host arrays become jax.Arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.engine.jax_private import put_on_device, set_weak_type

__all__ = ["Put", "put_all"]


class Put(NamedTuple):
    """One host array and what it is to become."""

    array: np.ndarray[Any, Any]
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding to commit to; None: uncommitted, default device
    prng_impl: str | None = None  # the array is key data of a typed PRNG key array


def put_all(puts: Sequence[Put], *, alias: bool) -> list[Any]:
    """jax.Arrays of host arrays.

    With `alias`, memory aligned to 64 bytes is used by the CPU backend as it is, even a
    read-only mapping; XLA never writes into it. Without, XLA owns a copy.
    """
    import jax

    results: list[Any] = [None] * len(puts)
    by_device: dict[Any, list[int]] = {}
    for i, put in enumerate(puts):
        if put.sharding is not None and (put.prng_impl is not None or _spreads(put.sharding)):
            results[i] = _put_sharded(put, alias)
        else:
            device = None if put.sharding is None else next(iter(put.sharding.device_set))
            by_device.setdefault(device, []).append(i)
    for device, members in by_device.items():
        arrays = [puts[i].array for i in members]
        weak_types = [puts[i].weak_type and puts[i].prng_impl is None for i in members]
        for i, array in zip(members, put_on_device(arrays, weak_types, device=device), strict=True):
            results[i] = array if alias else _owned(array, weak_types=puts[i].weak_type)
            if puts[i].prng_impl is not None:
                results[i] = jax.random.wrap_key_data(results[i], impl=puts[i].prng_impl)
    return results


def _spreads(sharding: Any) -> bool:
    """Whether a sharding is more than a place on one device."""
    return type(sharding).__name__ != "SingleDeviceSharding" or sharding.memory_kind not in (
        None,
        next(iter(sharding.device_set)).default_memory().kind,
    )


def _owned(array: Any, *, weak_types: bool) -> Any:
    import jax

    copied = jax.numpy.array(array, copy=True)
    return set_weak_type(copied) if weak_types and not copied.weak_type else copied


def _put_sharded(put: Put, alias: bool) -> Any:
    import jax

    array = put.array if alias else np.array(put.array)
    if put.prng_impl is not None:  # a key array's sharding is not its data's
        key = jax.random.wrap_key_data(jax.device_put(array), impl=put.prng_impl)
        return jax.device_put(key, put.sharding)
    result = jax.device_put(array, put.sharding)
    return set_weak_type(result) if put.weak_type else result
