"""A partitioned train state in the manner of T5X: each leaf restored with its mesh and dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    axes = {"kernel": P("data", None), "bias": P()}
    params = {
        "kernel": jnp.arange(32, dtype=jnp.float32).reshape(8, 4),
        "bias": jnp.zeros(4),
    }
    params = {
        name: jax.device_put(value, NamedSharding(mesh, axes[name]))
        for name, value in params.items()
    }
    optimizer = optax.adafactor(1e-3)
    state = {
        "target": params,
        "state": {"step": np.int32(7), "param_states": optimizer.init(params)},
        "flax_mutables": {},
    }
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    path = directory / "checkpoint_7"
    checkpointer.save(path, state, save_args=jax.tree.map(lambda _: ocp.SaveArgs(), state))

    def arguments_of(leaf: Any) -> Any:
        return ocp.ArrayRestoreArgs(restore_type=jax.Array, mesh=mesh, mesh_axes=P())

    restore_args = jax.tree.map(arguments_of, state)
    restore_args["target"]["kernel"] = ocp.ArrayRestoreArgs(
        dtype=jnp.bfloat16, mesh=mesh, mesh_axes=P("model", "data"), global_shape=(8, 4)
    )
    restored = checkpointer.restore(path, item=state, restore_args=restore_args)
    kernel = restored["target"]["kernel"]
    structure: Any = jax.tree.structure(restored)
    return {
        "kernel": kernel,
        "spec": str(kernel.sharding.spec),
        "leaves": jax.tree.leaves(restored),
        "same": structure == jax.tree.structure(state),
    }
