"""A manager with a checkpointer as its second argument, as before `args=` came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.training import orbax_utils


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = ocp.CheckpointManager(directory, ocp.PyTreeCheckpointer(), options)
    returned = []
    for step in range(4):
        tree = tree_at(step)
        save_args = orbax_utils.save_args_from_target(tree)
        returned.append(manager.save(step, tree, save_kwargs={"save_args": save_args}))
    target = jax.tree.map(jnp.zeros_like, tree_at(0))
    return {
        "returned": returned,
        "steps": list(manager.all_steps()),
        "latest": manager.latest_step(),
        "plain": manager.restore(3),
        "items": manager.restore(2, items=target),
    }


def tree_at(step: int) -> dict[str, Any]:
    return {"w": jnp.full((2, 2), step, jnp.float32), "opt": {"count": jnp.int32(step)}}
