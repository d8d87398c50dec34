"""Saves and loads of directories, by all processes of a group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.engine import meeting, together
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


def hasten(silence_seconds: float, mark_seconds: float) -> None:
    """Have processes notice sooner that others are dead or see other directories."""
    meeting.SILENCE_SECONDS = silence_seconds
    together.MARK_SECONDS = mark_seconds


def reference(step: int, rows: int = 64) -> dict[str, Any]:
    """The tree of a step, as numpy arrays and Python values."""
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
    """The tree with its arrays spread over all processes."""
    result = dict(tree)
    for name, spec in SPECS.items():
        value = tree[name]
        sharding = NamedSharding(mesh(columns), spec)
        result[name] = jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
    return result


def like(tree: dict[str, Any], columns: int) -> dict[str, Any]:
    """What a load of it is to give."""
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
    timeout_seconds: float = 60.0,
) -> None:
    tree = spread(reference(step, rows), columns)
    if not background:
        cordwood.save(path, tree, timeout_seconds=timeout_seconds)
        return
    pending = cordwood.save_async(path, tree, timeout_seconds=timeout_seconds)
    for name in SPECS:
        tree[name].delete()
    tree["local"]["numpy"][:] = -1
    pending.wait()


def load(path: str, steps: list[int], columns: int = 2, rows: int = 64) -> int:
    """Which of some steps a checkpoint holds, having compared all that is this process's."""
    found = cordwood.load(path, like=like(reference(steps[0], rows), columns), verify=True)
    step: int = found["local"]["step"]
    assert step in steps
    expected = reference(step, rows)
    assert_trees_equal(found["local"], expected["local"])
    for name, spec in SPECS.items():
        assert found[name].sharding == NamedSharding(mesh(columns), spec)
        for shard in found[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[name][shard.index])
    return step
