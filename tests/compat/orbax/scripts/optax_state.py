"""The state of an optimizer, restored into its classes or as plain containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = {"params": params, "opt_state": optimizer.init(params)}
    with ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(async_options=ocp.AsyncOptions())
    ) as manager:
        manager.save(1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = manager.restore(1, args=ocp.args.StandardRestore(abstract))
        free = manager.restore(1, args=ocp.args.StandardRestore())
    return {
        "same structure": str(jax.tree.structure(restored)) == str(jax.tree.structure(state)),
        "mu": restored["opt_state"][1][0].mu,
        "free": free,
    }
