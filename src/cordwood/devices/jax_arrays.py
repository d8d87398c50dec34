"""The shards of jax.Arrays as numpy arrays, and jax.Arrays of host arrays.

A shard on CPU is not copied: a numpy view of it keeps its buffer in use. Until the view is dropped,
a step that donates the array computes into new memory, and a deletion frees nothing. A shard on an
accelerator is copied to pinned host memory; `io/staging.py` decides when.

This is the only module that uses private names of jax. Each has a public fallback, except for the
coordination client. tests/devices/test_private_names.py tries both ways.

One file, because the private names serve both directions.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.errors import ProcessError
from cordwood.index import Box
from cordwood.sharding.boxes import (
    boxes_of,
    device_boxes,
    overlaps,
    shape_of,
    whole_box,
    within,
)
from cordwood.tree.leaves import (
    has_numpy_view,
    is_cpu,
    is_jax_array,
    pinned_host,
    single_device_array,
)


class LocalShards:
    """The distinct shards on CPU devices of one jax.Array that this process holds.

    Parts are views, which keep the buffers in use.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each shard holds.
        shards: the shards: numpy arrays, or jax.Arrays on one device each.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, boxes: Sequence[Box], shards: list[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._boxes = boxes
        self._shards = shards
        self._lock = threading.Lock()

    def part(self, box: Box) -> np.ndarray[Any, Any]:
        """Return the elements of a box: a view, if one shard holds them all.

        Raises ValueError for a box that is not wholly on this process.
        """
        pieces = overlaps(box, self._boxes)
        common, number = pieces[0] if pieces else (None, -1)
        if common == box:
            around = self._boxes[number]
            if around == box:
                shard = self._shards[number]
                whole = shard if isinstance(shard, np.ndarray) else single_device_array(shard)
                return np.asarray(whole)[...]  # an array even of no dimensions, not a scalar
            view: np.ndarray[Any, Any] = self._host_shard(number)[within(box, around)]
            return view
        result = np.empty(shape_of(box), self.dtype)
        for common, number in pieces:
            result[within(common, box)] = self._host_shard(number)[
                within(common, self._boxes[number])
            ]
        return result

    def _host_shard(self, number: int) -> np.ndarray[Any, Any]:
        """Return a shard, and keep it on the host: other parts of it will be needed."""
        with self._lock:
            shard = self._shards[number]
            if not isinstance(shard, np.ndarray):
                shard = self._shards[number] = single_device_array(shard)
        return np.asarray(shard)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.part(whole_box(self.shape))
        return array if dtype is None and not copy else np.array(array, dtype, copy=copy)


class DistinctShards(NamedTuple):
    """The distinct shards on this process of arrays of one shape and sharding."""

    numbers: list[int]  # positions among the shards of the process
    boxes: list[Box]
    on_cpu: bool  # all of them are on CPU devices
    host_shardings: list[Any]  # in host memory, to copy them to; None: the device has none


DistinctShardsOf: TypeAlias = dict[tuple[Any, tuple[int, ...]], DistinctShards]


class ArrayShards(NamedTuple):
    """A jax.Array and its distinct shards on this process, each on one device."""

    array: Any  # of a PRNG key array the key data
    shards: list[Any]
    boxes: list[Box]
    on_cpu: bool
    host_shardings: list[Any]

    @property
    def nbytes(self) -> int:
        """The size of the whole array."""
        size_bytes: int = math.prod(self.array.shape) * self.array.dtype.itemsize
        return size_bytes


def distinct_shards(array: Any, cache: DistinctShardsOf) -> ArrayShards:
    """Return the shards of a jax.Array on this process, such that each box occurs once.

    Args:
        array: the array, which may be a PRNG key array.
        cache: the distinct shards of the arrays so far.
    """
    if not isinstance(array.dtype, np.dtype):
        import jax

        array = jax.random.key_data(array)
    key = (array.sharding, array.shape)
    distinct = cache.get(key)
    if distinct is None:
        distinct = cache[key] = _distinct(array)
    arrays = local_arrays(array)
    return ArrayShards(array, [arrays[number] for number in distinct.numbers], *distinct[1:])


def _distinct(array: Any) -> DistinctShards:
    boxes = device_boxes(array.sharding, array.shape)
    devices = [next(iter(shard.devices())) for shard in local_arrays(array)]
    numbers = list({boxes[device]: i for i, device in reversed(list(enumerate(devices)))}.values())
    host_shardings = [pinned_host(devices[i]) for i in numbers]
    on_cpu = all(map(is_cpu, devices))
    return DistinctShards(numbers, [boxes[devices[i]] for i in numbers], on_cpu, host_shardings)


def local_shards(shards: ArrayShards, *, views: bool) -> LocalShards:
    """Return the shards of an array on CPU devices.

    Args:
        shards: the shards.
        views: take numpy views of their memory now, which keep their values even if the array is
            donated or deleted. False: when a part is needed.
    """
    array, arrays, boxes, _, _ = shards
    if views:
        to_host = np.asarray if has_numpy_view(array.dtype) else single_device_array
        arrays = list(map(to_host, arrays))
    return LocalShards(array.shape, array.dtype, boxes, arrays)


def snapshot_leaves(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with their present values, which later changes do not affect.

    jax.Arrays on CPU become LocalShards, numpy arrays are copied; all other leaves are immutable
    and stay. The caller's arrays are not modified. jax.Arrays on accelerators become ArrayShards,
    which are not copied yet. One case is not protected: memory that a jax.Array shares with a
    numpy array (`jax.device_put` of one, on CPU) can still change, and this cannot be detected.

    Waits only for arrays on CPU that are still being computed.
    """
    held: list[Any] = []
    cache: DistinctShardsOf = {}
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf = np.array(leaf)
        elif is_jax_array(leaf):
            leaf = distinct_shards(leaf, cache)
            if leaf.on_cpu:
                leaf = local_shards(leaf, views=True)
        held.append(leaf)
    return held


def accelerator_shards(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves; jax.Arrays on accelerators as ArrayShards."""
    cache: DistinctShardsOf = {}
    result = [*leaves]
    for i, leaf in enumerate(leaves):
        if is_jax_array(leaf):
            shards = distinct_shards(leaf, cache)
            result[i] = leaf if shards.on_cpu else shards
    return result


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


# jax.Arrays of host arrays


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
    return boxes_of(sharding.addressable_devices_indices_map(shape), shape)


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
    return data_shape[: len(data_shape) - len(_key_type(prng_impl)[1])]


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
    kind = parts[0].dtype if parts else _key_type(impl)[0] if impl else dtype
    whole = jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=kind)
    return set_weak_type(whole) if weak_type else whole


def _is_cpu(sharding: Any) -> bool:
    return is_cpu(next(iter(sharding.device_set)))


@functools.cache
def _key_type(impl: str) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype of PRNG keys, and the shape of the data of one key."""
    import jax

    key = jax.eval_shape(lambda: jax.random.key(0, impl=impl))
    return key.dtype, tuple(jax.eval_shape(jax.random.key_data, key).shape)


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


def copies_host_memory(memory: np.ndarray[Any, Any], device: Any) -> bool:
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


def pinned_bytes(size_bytes: int, device: Any) -> np.ndarray[Any, Any] | None:
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


# Private names of jax


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
    dtype: np.dtype[Any],
    arrays: Mapping[Any, np.ndarray[Any, Any]],
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


_CLIENT_CALLS = (
    "blocking_key_value_get_bytes",
    "key_value_delete",
    "key_value_dir_get_bytes",
    "key_value_set_bytes",
)


def coordination_client() -> Any:
    """Return the client of the coordination service that `jax.distributed.initialize` started.

    jax has no public name for it. Its public alternative, the collectives of
    `jax.experimental.multihost_utils`, runs on devices and so cannot run in a background thread.
    So there is no fallback: without the client this raises ProcessError.
    """
    import jax

    try:
        from jax._src.distributed import global_state

        client = global_state.client
    except (ImportError, AttributeError):
        client = None
    missing = [name for name in _CLIENT_CALLS if not hasattr(client, name)]
    if missing:
        raise ProcessError(
            f"jax {jax.__version__} runs {jax.process_count()} processes, but its coordination "
            f"client ({type(client).__name__}) has no {', '.join(missing)}: cordwood needs it to "
            "save from several processes, and was tried with jax 0.7.0, 0.10.2 and 0.12.0.1"
        )
    return client


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
