"""An Equinox model: the arrays are saved, and the functions come from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    model = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in range(4):
            arrays = eqx.filter(model, eqx.is_array)
            manager.save(
                step,
                args=ocp.args.Composite(
                    model=ocp.args.StandardSave(arrays), opt=ocp.args.StandardSave(opt_state)
                ),
            )
            manager.wait_until_finished()
        steps = manager.all_steps()
        new = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(1))
        arrays, static = eqx.partition(new, eqx.is_array)
        restored = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(
                model=ocp.args.StandardRestore(arrays), opt=ocp.args.StandardRestore(opt_state)
            ),
        )
    same = eqx.combine(restored.model, static)
    x = jnp.ones(3)
    return {
        "steps": steps,
        "output": [jax.vmap(model)(x[None]), jax.vmap(same)(x[None])],
        "opt": [type(each).__name__ for each in restored["opt"]],
        "model": type(restored["model"]).__name__,
    }
