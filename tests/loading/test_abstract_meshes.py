"""A `like` whose shardings have an abstract mesh, as eval_shape makes it inside jax.set_mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError


def create() -> nnx.Linear:
    init = nnx.with_partitioning(nnx.initializers.ones, ("x", None))
    return nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_the_mesh_of_the_call_or_of_set_mesh(tmp_path: Path, axis_type: AxisType) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(axis_type,))
    smaller = jax.make_mesh((2, 4), ("x", "y"), axis_types=(axis_type,) * 2)
    tree: Any = {"kernel": {"value": np.ones((8, 8), np.float32)}, "bias": {"value": jnp.zeros(8)}}
    cordwood.save(tmp_path / "a", tree)
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, tree)
    with jax.set_mesh(mesh):
        like: Any = nnx.eval_shape(create)
        loaded = [
            cordwood.load(tmp_path / "a", like=like),
            cordwood.StepReader(tmp_path / "run").restore(1, like=like).tree,
        ]
    loaded.append(cordwood.load(tmp_path / "a", like=like, mesh=mesh))
    for model in loaded:
        assert model.kernel.sharding.mesh == model.bias.sharding.mesh == mesh
        assert model.kernel.sharding.spec == P("x", None)
        np.testing.assert_array_equal(model.kernel[...], tree["kernel"]["value"])
    other = cordwood.load(tmp_path / "a", like=like, mesh=smaller)
    assert other.kernel.sharding.mesh == smaller
    assert other.kernel.sharding.shard_shape((8, 8)) == (4, 8)
    with pytest.raises(ValueError, match=r"over an abstract mesh, .*: pass mesh=, or load inside"):
        cordwood.load(tmp_path / "a", like=like)
    without = jax.make_mesh((8,), ("z",), axis_types=(axis_type,))
    with pytest.raises(MismatchError, match="kernel/value: "):
        cordwood.load(tmp_path / "a", like=like, mesh=without)
