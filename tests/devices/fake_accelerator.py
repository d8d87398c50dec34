"""CPU devices that cordwood takes for accelerators, with device memory and host memory.

A CPU device of jax has several memory kinds: "device", where arrays are by default, and
"pinned_host". A copy from one to the other is a real copy, as between a GPU and its host. In the
block of `fake_accelerator`, cordwood no longer regards the memory of CPU devices as its own: it
must copy before it reads an array, and a load must put arrays there.

Use the fixture of the same name in tests/conftest.py, or the context manager in a script.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np

from cordwood.devices import array_shards, device_memory, private_jax, put_arrays
from cordwood.tree import leaves

# The modules that have imported `is_cpu`; imported in the block, they would keep the substitute.
USERS = (leaves, array_shards, device_memory, put_arrays)


@contextmanager
def fake_accelerator() -> Iterator[str]:
    """Let cordwood take CPU devices for accelerators; return the kind of their host memory.

    As on an accelerator, `jax.device_put` of a numpy array copies it before it returns. (On CPU it
    may use the memory of the numpy array as it is.)
    """
    real, device_put = leaves.is_cpu, jax.device_put
    users = [
        module
        for name, module in [*sys.modules.items()]
        if name.startswith("cordwood") and getattr(module, "is_cpu", None) is real
    ]
    assert set(USERS) <= set(users)

    def put(x: Any, *arguments: Any, **options: Any) -> Any:
        copied = jax.tree.map(lambda a: a.copy() if type(a) is np.ndarray else a, x)
        return device_put(copied, *arguments, **options)

    leaves.pinned_host.cache_clear()
    with mock.patch.object(jax, "device_put", put), _copying_quick_put():
        for module in users:
            module.is_cpu = lambda device: False  # type: ignore[attr-defined]
        try:
            kind = host_kind()
            held = leaves.pinned_host(jax.devices()[0])
            assert held is not None
            assert held.memory_kind == kind
            yield kind
        finally:
            for module in users:
                module.is_cpu = real  # type: ignore[attr-defined]
            leaves.pinned_host.cache_clear()


@contextmanager
def _copying_quick_put() -> Iterator[None]:
    """Copy the numpy arrays that cordwood hands to jax by a private name."""
    real = private_jax._quick_put

    def quick_put() -> Any:
        shaped, put = real()

        def copying(aval: Any, sharding: Any, arrays: list[Any], *rest: Any) -> Any:
            return put(aval, sharding, [np.array(array) for array in arrays], *rest)

        return shaped, copying

    with mock.patch.object(private_jax, "_quick_put", quick_put):
        yield


def host_kind() -> str:
    """Return the memory kind of the host memory: "pinned_host", or "unpinned_host" of jax 0.7."""
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    return "pinned_host" if "pinned_host" in kinds else "unpinned_host"


def live_host_bytes(kind: str) -> int:
    """Return how many bytes of jax arrays are in the host memory of that kind."""
    arrays = [array for array in jax.live_arrays() if array.sharding.memory_kind == kind]
    return sum([array.nbytes for array in arrays])
