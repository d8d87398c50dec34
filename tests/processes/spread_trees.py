"""Saves and loads of a tree that is spread over all processes of a group, by public names only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.testing import assert_trees_equal

# How each leaf is spread over a mesh of axes x and y; all sizes divide by eight.
SPECS: dict[str, P] = {
    "sharded": P("x", "y"),
    "rows": P("x"),
    "columns": P(None, ("x", "y")),
    "partly": P("y"),
    "replicated": P(),
    "scalar": P(),
    "empty": P(),
}


def reference(step: int, rows: int = 64) -> dict[str, Any]:
    """Return the tree of a step, as numpy arrays and Python values."""
    rng = np.random.default_rng(step)
    return {
        "sharded": rng.standard_normal((rows, 32), np.float32),
        "rows": rng.standard_normal((rows * 16, 8)).astype(jnp.bfloat16),
        "columns": rng.integers(-99, 99, (8, 64), np.int32),
        "partly": rng.standard_normal((rows, 8), np.float32),
        "replicated": rng.standard_normal((rows * 1024, 8), np.float32),
        "scalar": np.array(step, np.int32),
        "empty": np.zeros((0, 4), np.float32),
        "local": {"numpy": rng.integers(0, 9, 5), "step": step, "name": f"step {step}"},
    }


def mesh(columns: int) -> Mesh:
    every = np.array(jax.devices())
    return Mesh(every.reshape(-1, columns), ("x", "y"))


def spread(tree: dict[str, Any], columns: int) -> dict[str, Any]:
    """Return the tree with its arrays spread over all processes."""
    result = dict(tree)
    for name, spec in SPECS.items():
        value = tree[name]
        sharding = NamedSharding(mesh(columns), spec)
        result[name] = jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
    return result


def like(tree: dict[str, Any], columns: int) -> dict[str, Any]:
    """Return what a load of the tree is to give."""
    result = dict(tree)
    for name, spec in SPECS.items():
        sharding = NamedSharding(mesh(columns), spec)
        value = tree[name]
        result[name] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    return result


def save(
    path: str,
    step: int,
    columns: int = 2,
    rows: int = 64,
    background: bool = False,
    timeout_seconds: float = 300.0,
    **options: Any,
) -> None:
    """Save the tree of a step; in the background, delete and change it before the save ends."""
    tree = spread(reference(step, rows), columns)
    options["timeout_seconds"] = timeout_seconds
    if not background:
        cordwood.save(path, tree, **options)
        return
    pending = cordwood.save_async(path, tree, **options)
    for name in SPECS:
        tree[name].delete()
    tree["local"]["numpy"][:] = -1
    pending.wait()


def load(path: str, steps: list[int], columns: int = 2, rows: int = 64) -> int:
    """Return which of some steps a checkpoint holds; compare the shards of this process."""
    loaded = cordwood.load(path, like=like(reference(steps[0], rows), columns), verify=True)
    step = step_of(loaded, columns, rows)
    assert step in steps
    return step


def step_of(loaded: dict[str, Any], columns: int, rows: int) -> int:
    """Return which step a tree is of; compare the shards of this process."""
    step: int = loaded["local"]["step"]
    expected = reference(step, rows)
    assert_trees_equal(loaded["local"], expected["local"])
    for name, spec in SPECS.items():
        assert loaded[name].sharding == NamedSharding(mesh(columns), spec)
        for shard in loaded[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[name][shard.index])
    return step
