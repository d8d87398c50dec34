"""The private names of jax that cordwood uses; each has a public fallback.

tests/devices/test_private_names.py tries both ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.device_memory import default_device


class DevicePut(NamedTuple):
    """One host array, and the properties of the jax.Array to make of it."""

    array: np.ndarray
    weak_type: bool = False
    sharding: Any = None  # a SingleDeviceSharding to commit to; None: default device, uncommitted
    prng_impl: str | None = None  # the array is key data of a typed PRNG key array


def put_on_device(puts: Sequence[DevicePut], *, device: Any | None) -> list[Any]:
    """Return jax.Arrays of host arrays; on CPU they alias the memory of the host arrays.

    They are committed to `device`; if that is None, they are on the default device, uncommitted.
    The fallback, `jax.device_put` of each, takes about twenty times as long for small leaves.
    """
    import jax

    committed = device is not None
    target = device or default_device()
    try:
        shaped, put = _quick_put()
        sharding = jax.sharding.SingleDeviceSharding(target)
        avals: dict[Any, Any] = {}
        results = []
        for array, weak_type, _, impl in puts:
            weak_type = weak_type and impl is None
            key = (array.shape, array.dtype, weak_type)
            aval = avals.get(key)
            if aval is None:
                aval = avals[key] = shaped(array.shape, array.dtype, weak_type=weak_type)
            results.append(put(aval, sharding, [array], [target], committed))
        return results
    except (ImportError, AttributeError, TypeError):
        results = [jax.device_put(put.array, device) for put in puts]
        return [
            set_weak_type(result) if put.weak_type and put.prng_impl is None else result
            for result, put in zip(results, puts, strict=True)
        ]


def put_sharded(
    shape: tuple[int, ...],
    dtype: np.dtype,
    arrays: Mapping[Any, np.ndarray],
    sharding: Any,
    *,
    weak_type: bool,
) -> Any:
    """Return a jax.Array of a sharding, made of the arrays of its devices on this process.

    On CPU it aliases their memory. The fallback takes about twenty times as long for small arrays.
    """
    if arrays:
        try:
            shaped, put = _quick_put()
            aval = shaped(shape, dtype, weak_type=weak_type)
            return put(aval, sharding, [*arrays.values()], [*arrays], True)
        except (ImportError, AttributeError, TypeError):
            pass
    import jax

    parts = []
    for device, array in arrays.items():
        single = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        parts.append(jax.device_put(array, single))
    whole = jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=dtype)
    return set_weak_type(whole) if weak_type else whole


@functools.cache
def _quick_put() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return jax's type of abstract arrays, and the function that makes a jax.Array of parts."""
    from jax._src.core import ShapedArray
    from jax._src.interpreters.pxla import batched_device_put

    return ShapedArray, batched_device_put


def set_weak_type(array: Any) -> Any:
    """Return the same array with a weak type.

    The fallback uses the weak type of a Python scalar: it keeps the values, but copies them.
    """
    import jax

    try:
        from jax._src.lax.lax import _convert_element_type

        return _convert_element_type(array, array.dtype, weak_type=True)
    except (ImportError, AttributeError, TypeError):
        zero = jax.numpy.full(array.shape, array.dtype.type(0).item())
        return zero.at[...].set(array)


def local_arrays(array: Any) -> Sequence[Any]:
    """Return the shards of this process, as jax.Arrays on one device each.

    The fallback is slower: for each shard it checks again whether the array was deleted.
    """
    try:
        shards: Sequence[Any] = array._arrays
        return shards
    except AttributeError:
        count = len(array.sharding.addressable_devices)
        return [array.addressable_data(number) for number in range(count)]
