"""Conversion of host arrays to jax.Arrays, on one device or several."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.devices.jax_private import put_on_device, put_sharded, set_weak_type
from cordwood.index import Box


class Shards(NamedTuple):
    """The parts of an array on the devices of this process."""

    shape: tuple[int, ...]  # of the whole array
    arrays: Mapping[Any, np.ndarray[Any, Any]]  # by device; several devices may share one array
    sharding: Any  # a jax Sharding; its devices on this process are the keys of `arrays`
    dtype: np.dtype[Any]
    weak_type: bool = False
    prng_impl: str | None = None  # the arrays are key data of a typed PRNG key array


def sharding_of(placement: Any) -> Any:
    """Return a jax Sharding as it is, or the sharding of a jax Format (which adds a layout)."""
    return placement.sharding if hasattr(placement, "layout") else placement


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
    boxes = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        ranges = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        boxes[device] = Box(tuple([a for a, _ in ranges]), tuple([b for _, b in ranges]))
    return boxes


def key_boxes(sharding: Any, data_shape: tuple[int, ...], prng_impl: str) -> dict[Any, Box]:
    """Return the boxes of the key data of a PRNG key array with that sharding."""
    shape = key_shape(data_shape, prng_impl)
    rest = data_shape[len(shape) :]
    return {
        device: Box((*box.start, *[0] * len(rest)), (*box.stop, *rest))
        for device, box in local_boxes(sharding, shape).items()
    }


def key_shape(data_shape: tuple[int, ...], prng_impl: str) -> tuple[int, ...]:
    """Return the shape of a PRNG key array whose key data has that shape."""
    return data_shape[: len(data_shape) - len(_key_data_shape(prng_impl))]


def put_shards(shards: Shards, *, alias: bool) -> Any:
    """Return the jax.Array of shards. On CPU it uses their memory as `to_jax.put_all` does."""
    import jax

    shape, arrays, sharding, dtype, weak_type, impl = shards
    if impl is None and (alias or not _is_cpu(sharding)):
        return put_sharded(shape, dtype, arrays, sharding, weak_type=weak_type)
    parts = []
    for device, array in arrays.items():
        single = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        part = put_sharded(array.shape, dtype, {device: array}, single, weak_type=False)
        if not alias and _is_cpu(sharding):
            part = jax.numpy.array(part, copy=True)
        parts.append(part if impl is None else jax.random.wrap_key_data(part, impl=impl))
    if impl is not None:
        shape = key_shape(shape, impl)
    kind = parts[0].dtype if parts else _key_dtype(impl) if impl else dtype
    whole = jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=kind)
    return set_weak_type(whole) if weak_type else whole


def _is_cpu(sharding: Any) -> bool:
    return bool(next(iter(sharding.device_set)).platform == "cpu")


def _key_dtype(impl: str) -> Any:
    import jax

    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


@functools.cache
def _key_data_shape(impl: str) -> tuple[int, ...]:
    import jax

    data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl)))
    return tuple(data.shape)


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
