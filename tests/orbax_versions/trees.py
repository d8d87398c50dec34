"""The trees that Orbax is to read: one for each row of the page, with jax alone.

Both cordwood's environment and those of Orbax import this, and make the same trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

DEVICES = 8
MANY = 20_000


def mesh_of(devices: Sequence[Any], *shape: int) -> Mesh:
    return Mesh(np.array(devices[: int(np.prod(shape))]).reshape(shape), ("x", "y"))


def one_device() -> dict[str, Any]:
    return {
        "params": {"kernel": jnp.arange(24.0).reshape(6, 4), "bias": np.arange(5, dtype=np.int16)},
        "layers": [jnp.full(3, 0.5), {"scale": jnp.int32(4)}],
        "a/b": jnp.array([True, False]),
    }


def rows() -> np.ndarray[Any, Any]:
    """Return the value of each array of `sharded`."""
    return np.arange(96 * 64, dtype=np.float32).reshape(96, 64)


SPECS = {
    "rows": PartitionSpec("x"),
    "columns": PartitionSpec(None, "y"),
    "both": PartitionSpec("x", "y"),
    "joined": PartitionSpec(("x", "y")),
    "replicated": PartitionSpec(),
}


def sharded(mesh: Mesh) -> dict[str, Any]:
    """Return arrays that are cut along one axis, along both, along none and unevenly."""

    def put(spec: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(rows().shape, sharding, lambda index: rows()[index])

    return {name: put(spec) for name, spec in SPECS.items()}


def eight_devices() -> dict[str, Any]:
    return sharded(mesh_of(jax.devices(), 4, 2))


def low_precision() -> dict[str, Any]:
    return {"w": jnp.asarray(np.arange(-7, 8).reshape(3, 5).astype(jnp.bfloat16))}


def eight_bits() -> dict[str, Any]:
    values = np.arange(-6, 6).reshape(3, 4)
    return {
        "e4m3": jnp.asarray(values.astype(jnp.float8_e4m3fn)),
        "e5m2": jnp.asarray(values.astype(jnp.float8_e5m2)),
    }


def four_bits() -> dict[str, Any]:
    values = np.arange(-4, 4).astype(jnp.int4)
    return {"matrix": jnp.asarray(values.reshape(2, 4)), "odd": jnp.asarray(values[:7])}


def random_keys() -> dict[str, Any]:
    data = jnp.asarray(np.arange(16, dtype=np.uint32).reshape(4, 4))
    return {"one": jax.random.key(3), "four": jax.random.wrap_key_data(data, impl="rbg")}


def strings() -> dict[str, Any]:
    return {"w": jnp.ones(2), "name": "Grüße", "list": ["a", "b/c"]}


def scalars() -> dict[str, Any]:
    return {"w": jnp.ones(2), "step": 7, "low": -(1 << 62), "rate": 0.1, "flag": True}


def none() -> dict[str, Any]:
    return {"w": jnp.ones(2), "none": None, "list": [None, jnp.zeros(3)]}


def empty_nodes() -> dict[str, Any]:
    return {"w": jnp.ones(2), "dict": {}, "list": [], "inner": {"dict": {}, "b": jnp.zeros(1)}}


def many_leaves(count: int = MANY) -> dict[str, Any]:
    arrays = np.arange(count * 2, dtype=np.int32).reshape(count, 2)
    return {f"layer_{i // 100}": {} for i in range(0, count, 100)} | {
        f"layer_{i}": {f"w{j}": arrays[i * 100 + j] for j in range(100)}
        for i in range(count // 100)
    }


TREES: dict[str, Callable[[], dict[str, Any]]] = {
    "one device": one_device,
    "8 devices, read onto another mesh": eight_devices,
    "bf16": low_precision,
    "fp8": eight_bits,
    "int4": four_bits,
    "PRNG keys": random_keys,
    "strings": strings,
    "scalars": scalars,
    "None": none,
    "empty nodes": empty_nodes,
    "20,000 leaves": many_leaves,
}
GROUPS = {"2 processes": 2, "4 processes": 4}  # of two devices each


def spread(count: int) -> dict[str, Any]:
    """Return a tree on the devices of all processes of a group."""
    return sharded(mesh_of(jax.devices(), count, 2))


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def step_tree(tree: Any, step: int) -> dict[str, Any]:
    """Return a tree with the number of its step in an array."""
    return {**tree, "at": np.full(1, step, np.int32)}


def expected_tree(name: str) -> dict[str, Any]:
    """Return a tree with the values that a row of the page has, on the devices of this process."""
    if name in GROUPS:
        return spread(min(GROUPS[name], len(jax.devices()) // 2))
    return TREES[name]()


def target_of(tree: Any) -> Any:
    """Return what a restore is to bring back: arrays on other devices than they were saved from."""
    return jax.tree.map(_target_of_leaf, tree)


def _target_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.zeros_like(leaf)
    if not isinstance(leaf, jax.Array):
        return type(leaf)()
    if is_key(leaf):
        data = jnp.zeros_like(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf.sharding, NamedSharding):
        sharding: Any = NamedSharding(mesh_of(jax.devices(), 2, 4), PartitionSpec("y", "x"))
    else:
        sharding = SingleDeviceSharding(jax.devices()[-1])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
