"""A job that evaluates each step of a run by a read-only manager, and the best one at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"w": jnp.zeros(3), "n": 0}
    options = ocp.CheckpointManagerOptions(
        save_interval_steps=5, max_to_keep=10, best_fn=lambda m: m["acc"], best_mode="max"
    )
    returned = []
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in range(21):
            tree = {"w": jnp.full(3, float(step)), "n": step}
            metrics = {"acc": -abs(step - 12) / 20, "loss": 1.0}
            returned.append(manager.save(step, args=ocp.args.StandardSave(tree), metrics=metrics))
        manager.wait_until_finished()
    read_only = ocp.CheckpointManagerOptions(
        read_only=True, best_fn=lambda m: m["acc"], best_mode="max"
    )
    seen = list(ocp.checkpoint_utils.checkpoints_iterator(directory, timeout=0))
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
    with ocp.CheckpointManager(directory, options=read_only) as manager:
        best = manager.best_step()
        values = {
            str(step): manager.restore(step, args=ocp.args.StandardRestore(target))
            for step in manager.all_steps()
        }
        metrics = manager.metrics(best)
        saved = manager.save(30, args=ocp.args.StandardSave(tree))
    return {
        "returned": returned,
        "seen": seen,
        "best": best,
        "values": values,
        "metrics": metrics,
        "saved": saved,
        "manager": [manager.directory.name == directory.name],
    }
