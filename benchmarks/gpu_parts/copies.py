"""Plain copies between a device and host memory, by each way that jax offers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from benchmarks.bare import read_into, read_through
from benchmarks.gpu_parts.part import (
    MIB,
    NotPossibleError,
    Results,
    Setting,
    in_turns,
    repeat,
    seconds_of,
)

SMALL_BYTES = 4 * MIB  # of each of many arrays
READ_THREADS = (1, 4, 8)


class Arrays:
    """Arrays of given sizes (bytes) on a device, and on the host; each is made when first used."""

    def __init__(self, sizes: Sequence[int], device: Any) -> None:
        self.sizes = sizes
        self.device = device

    @cached_property
    def host(self) -> list[Any]:
        """The arrays in ordinary memory."""
        import numpy as np

        noise = np.random.default_rng(0).random(max(self.sizes) // 4, np.float32)
        return [noise[: size // 4].copy() for size in self.sizes]

    @cached_property
    def on_device(self) -> list[Any]:
        """The arrays on the device."""
        return _put(self.host, self.device)

    @cached_property
    def pinned(self) -> list[Any]:
        """The arrays as jax.Arrays in pinned host memory."""
        return _put(self.host, pinned_sharding(self.device))

    @cached_property
    def pinned_views(self) -> list[Any]:
        """Writable numpy views of the memory of the pinned arrays."""
        return [pinned_view(array) for array in self.pinned]

    def fresh(self) -> list[Any]:
        """Return new arrays on the device, which hold no copy in host memory."""
        import jax
        import jax.numpy as jnp

        return jax.block_until_ready([jnp.copy(array) for array in self.on_device])


def pinned_sharding(device: Any) -> Any:
    """Return the sharding of pinned host memory; raise NotPossibleError if there is none."""
    import jax

    if "pinned_host" not in [memory.kind for memory in device.addressable_memories()]:
        raise NotPossibleError("jax has no pinned_host memory for this device")
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")


def pinned_view(array: Any) -> Any:
    """Return a writable numpy view of the memory of a jax.Array in host memory.

    The array must outlive the view. Raises NotPossibleError if jax does not tell where it is.
    """
    import numpy as np

    try:
        address = array.unsafe_buffer_pointer()
    except Exception as e:
        raise NotPossibleError(f"jax tells no address: {e}") from e
    memory = (ctypes.c_uint8 * array.nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8).view(array.dtype).reshape(array.shape)


def _put(arrays: Any, place: Any) -> Any:
    import jax

    return jax.block_until_ready(jax.device_put(arrays, place))


def _as_numpy(arrays: Arrays) -> float:
    import numpy as np

    fresh = arrays.fresh()
    return seconds_of(lambda: [np.asarray(array) for array in fresh])


def _as_numpy_at_once(arrays: Arrays) -> float:
    import numpy as np

    fresh = arrays.fresh()

    def copy() -> Any:
        for array in fresh:
            array.copy_to_host_async()
        return [np.asarray(array) for array in fresh]

    return seconds_of(copy)


def _to_pinned(arrays: Arrays) -> float:
    place = pinned_sharding(arrays.device)
    fresh = arrays.fresh()
    return seconds_of(lambda: _put(fresh, place))


def _from_numpy(arrays: Arrays) -> float:
    host = arrays.host
    return seconds_of(lambda: _put(host, arrays.device))


def _from_pinned_views(arrays: Arrays) -> float:
    views = arrays.pinned_views
    return seconds_of(lambda: _put(views, arrays.device))


def _from_pinned(arrays: Arrays) -> float:
    import jax

    pinned = arrays.pinned
    place = jax.sharding.SingleDeviceSharding(arrays.device)
    return seconds_of(lambda: _put(pinned, place))


TO_HOST: dict[str, Callable[[Arrays], float]] = {
    "np.asarray of new arrays": _as_numpy,
    "copy_to_host_async, then np.asarray": _as_numpy_at_once,
    "device_put to pinned_host": _to_pinned,
}
TO_DEVICE: dict[str, Callable[[Arrays], float]] = {
    "device_put of numpy arrays": _from_numpy,
    "device_put of numpy views of pinned memory": _from_pinned_views,
    "device_put of pinned_host arrays": _from_pinned,
}


def sets_of(plain_bytes: int) -> dict[str, list[int]]:
    """Return the sizes of the arrays of each set: one array, and many with as many bytes."""
    small = min(SMALL_BYTES, plain_bytes // 8)
    return {"one array": [plain_bytes], "many arrays": [small] * (plain_bytes // small)}


def measure(setting: Setting, results: Results) -> None:
    """Measure the copies in GB/s; the first one allocates, the others reuse its memory."""
    import jax

    device = jax.devices()[0]
    results.put("bytes", setting.plain_bytes)
    ways = {**TO_HOST, **TO_DEVICE}
    remaining = 2 * len(ways) + 1
    for title, sizes in sets_of(setting.plain_bytes).items():
        arrays = Arrays(sizes, device)
        for name, way in ways.items():
            results.measure(
                f"{name}, {title}", partial(_rates, way, arrays, setting.share(remaining))
            )
            remaining -= 1
    results.measure("a pinned array as numpy", lambda: _view_of_pinned(setting, device))
    results.measure("page cache to pinned memory", lambda: _reads(setting, device))


def _rates(way: Callable[[Arrays], float], arrays: Arrays, until: float) -> dict[str, float]:
    size = sum(arrays.sizes)
    rounds = repeat(lambda: way(arrays), until=until)
    return {"first": size / rounds.first / 1e9, "median": size / rounds.median / 1e9}


def _view_of_pinned(setting: Setting, device: Any) -> str:
    """Say if np.asarray of an array in pinned host memory is a view of it."""
    import numpy as np

    (pinned,) = Arrays([setting.plain_bytes], device).pinned
    kept = []
    seconds = seconds_of(lambda: kept.append(np.asarray(pinned)))
    (array,) = kept
    same = array.ctypes.data == pinned.unsafe_buffer_pointer()
    kind = "a view of the same memory" if same and not array.flags.owndata else "a copy"
    return f"{kind} (same address: {same}, owndata: {array.flags.owndata}, {1e3 * seconds:.2f} ms)"


def _reads(setting: Setting, device: Any) -> dict[str, float]:
    """Return the GB/s of reads from the page cache into pinned memory, by number of threads."""
    import mmap

    arrays = Arrays([setting.plain_bytes], device)  # owns the memory of the view
    memory = memoryview(arrays.pinned_views[0]).cast("B")
    path = setting.folder / "plain-to-pinned"
    try:
        source = memoryview(mmap.mmap(-1, min(64 * MIB, setting.plain_bytes)))
        with path.open("wb", buffering=0) as file:
            for _ in range(setting.plain_bytes // source.nbytes):
                file.write(source)
        memory = memory[: path.stat().st_size]
        read_through([path])
        works = {
            str(threads): partial(seconds_of, partial(read_into, path, memory, threads=threads))
            for threads in READ_THREADS
        }
        rounds = in_turns(works, until=setting.share(1), most=4)
        return {name: memory.nbytes / each.median / 1e9 for name, each in rounds.items()}
    finally:
        path.unlink(missing_ok=True)
