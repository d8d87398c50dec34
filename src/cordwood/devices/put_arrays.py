"""jax.Arrays made of host arrays, on one device or sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.device_memory import is_in_accelerator_memory
from cordwood.devices.local_boxes import key_shape, key_type
from cordwood.devices.private_jax import DevicePut, put_on_device, put_sharded, set_weak_type
from cordwood.tree.leaves import is_cpu


class Shards(NamedTuple):
    """The parts of an array on the devices of this process."""

    shape: tuple[int, ...]  # of the whole array
    arrays: Mapping[Any, np.ndarray]  # by device; several devices may share one array
    sharding: Any  # a jax Sharding; its devices on this process are the keys of `arrays`
    dtype: np.dtype
    weak_type: bool = False
    prng_impl: str | None = None  # the arrays are key data of a typed PRNG key array


_LEAST_PASSED_BYTES = 1 << 20  # a smaller part is sent to each device from the host, in one call


def put_shards(shards: Shards, *, alias: bool) -> Any:
    """Return the jax.Array of shards. On CPU it uses their memory as `put_all` does.

    A large part that several accelerators hold is sent to one of them, which passes it on.
    """
    import jax

    shape, arrays, sharding, dtype, weak_type, impl = shards
    on_cpu = _is_cpu(sharding)
    sizes = {id(array): array.nbytes for array in arrays.values()}
    passes_on = len(sizes) < len(arrays) and max(sizes.values()) >= _LEAST_PASSED_BYTES
    passes_on = passes_on and is_in_accelerator_memory(sharding)
    if impl is None and not passes_on and (alias or not on_cpu):
        return put_sharded(shape, dtype, arrays, sharding, weak_type=weak_type)
    parts = []
    sent: dict[int, Any] = {}
    for device, array in arrays.items():
        single = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        if passes_on and id(array) in sent:
            part = jax.device_put(sent[id(array)], single)
        else:
            part = put_sharded(array.shape, dtype, {device: array}, single, weak_type=False)
            sent[id(array)] = part
        if not alias and on_cpu:
            part = jax.numpy.array(part, copy=True)
        parts.append(part if impl is None else jax.random.wrap_key_data(part, impl=impl))
    if impl is not None:
        shape = key_shape(shape, impl)
    kind = parts[0].dtype if parts else key_type(impl)[0] if impl else dtype
    whole = jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=kind)
    return set_weak_type(whole) if weak_type else whole


def _is_cpu(sharding: Any) -> bool:
    return is_cpu(next(iter(sharding.device_set)))


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
        arrays = put_on_device([puts[i] for i in members], device=device)
        for i, array in zip(members, arrays, strict=True):
            results[i] = array if alias else _owned(array, weak_types=puts[i].weak_type)
            if puts[i].prng_impl is not None:
                results[i] = jax.random.wrap_key_data(results[i], impl=puts[i].prng_impl)
    return results


def _owned(array: Any, *, weak_types: bool) -> Any:
    import jax

    copied = jax.numpy.array(array, copy=True)
    return set_weak_type(copied) if weak_types and not copied.weak_type else copied
