"""The trees that the benchmark of directories stores, and their numbers of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.contender_names import ORBAX_RAW, ORBAX_RAW_FILES
from benchmarks.trees import gpt2_adam, one_leaf, small_leaves, tiny_leaves

__all__ = ["CASES", "Case", "mesh", "spread"]


class Case(NamedTuple):
    """A tree and the number of (virtual) devices that hold it."""

    what: str
    devices: int
    make: Callable[[int], Any]  # argument: the size of the one large leaf, in GiB
    without: frozenset[str] = frozenset()  # contenders that are not run
    why: str = ""


def smoke() -> Any:
    """Return a tree of 2 MB in 23 leaves, one of which no axis divides by eight."""
    rng = np.random.default_rng(0)
    layer = {"w": (256, 64), "b": (256,)}
    layers = [
        {name: jax.device_put(rng.random(shape, np.float32)) for name, shape in layer.items()}
        for _ in range(10)
    ]
    large = jax.device_put(rng.random((1024, 256), np.float32))
    odd = jax.device_put(rng.random((7, 3), np.float32))
    return {"layers": layers, "large": large, "odd": odd, "step": jax.device_put(np.int32(7))}


def mesh() -> jax.sharding.Mesh:
    """Return a mesh of all devices on one axis."""
    return jax.sharding.Mesh(np.array(jax.devices()), ("shards",))


def spread(tree: Any) -> Any:
    """Return the tree with each leaf cut along its first divisible axis, as in FSDP training."""
    devices = mesh()

    def place(leaf: jax.Array) -> jax.Array:
        axes: list[str | None] = [None] * leaf.ndim
        for axis, size in enumerate(leaf.shape):
            if size and size % devices.size == 0:
                axes[axis] = "shards"
                break
        spec = jax.sharding.PartitionSpec(*axes)
        return jax.device_put(leaf, jax.sharding.NamedSharding(devices, spec))

    return jax.tree.map(place, tree)


CASES = {
    "gpt2": Case(
        "GPT-2-small-shaped f32 parameters with Adam's two moments", 1, lambda _: gpt2_adam()
    ),
    "gpt2-8-devices": Case(
        "The same, each leaf cut over eight devices", 8, lambda _: spread(gpt2_adam())
    ),
    "tiny": Case("1,000 leaves of 64 bytes", 1, lambda _: tiny_leaves()),
    "small": Case(
        "20,000 leaves of 1 KB",
        1,
        lambda _: small_leaves(),
        without=frozenset({ORBAX_RAW, ORBAX_RAW_FILES}),
        why="each of Orbax's saves takes about a minute, so only its default is measured",
    ),
    "one-leaf": Case("One large leaf", 1, one_leaf),
    "smoke": Case("A little of everything, on eight devices", 8, lambda _: spread(smoke())),
}
