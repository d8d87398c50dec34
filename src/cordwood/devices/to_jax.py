"""Conversion of host arrays to jax.Arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.jax_private import put_on_device, set_weak_type
from cordwood.devices.sharded_arrays import sharding_of


class DevicePut(NamedTuple):
    """One host array, and the properties of the jax.Array to make of it."""

    array: np.ndarray[Any, Any]
    weak_type: bool = False
    sharding: Any = None  # a SingleDeviceSharding to commit to; None: default device, uncommitted
    prng_impl: str | None = None  # the array is key data of a typed PRNG key array


def put_all(puts: Sequence[DevicePut], *, alias: bool) -> list[Any]:
    """Return jax.Arrays of host arrays.

    With `alias`, the CPU backend uses memory aligned to 64 bytes as it is, even a read-only
    mapping; XLA never writes into it. Without, XLA owns a copy.
    """
    import jax

    results: list[Any] = [None] * len(puts)
    by_device: dict[Any, list[int]] = {}
    for i, put in enumerate(puts):
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


def _owned(array: Any, *, weak_types: bool) -> Any:
    import jax

    copied = jax.numpy.array(array, copy=True)
    return set_weak_type(copied) if weak_types and not copied.weak_type else copied


def any_off_cpu(shardings: Iterable[Any]) -> bool:
    """Return True if a device of one of these shardings (None: the default one) is no CPU."""
    import jax

    distinct = {id(each): each for each in shardings}.values()
    devices = [next(iter(sharding_of(each).device_set)) for each in distinct if each is not None]
    if len(devices) < len(distinct):
        devices += jax.device_put(np.zeros((), np.int32)).devices()
    return any(device.platform != "cpu" for device in devices)


def wait_until_ready(values: Sequence[Any]) -> None:
    """Return when the jax arrays among `values` have arrived on their devices."""
    if values:
        import jax

        jax.block_until_ready(values)  # type: ignore[no-untyped-call]
