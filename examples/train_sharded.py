"""A run with plain jax on eight devices, FSDP x tensor parallel, that saves each shard in place.

    python examples/train_sharded.py [root] [steps]

Kill it and run it again: the losses are the same as in a run that was never stopped.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cordwood import CheckpointManager, EverySteps, KeepLast

mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
# Each weight is sharded over both axes: "data" saves memory, "model" splits the computation.
SPECS = {"up": P("data", "model"), "down": P("model", "data")}
SHAPES = {"up": (16, 256), "down": (256, 16)}


def new_run() -> dict[str, Any]:
    """Return weights, momentum and step, sharded over the mesh."""
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    weights = {
        name: jax.device_put(jax.random.normal(key, SHAPES[name]) / 16, shardings[name])
        for key, name in zip(keys, SHAPES, strict=True)
    }
    momentum = {name: jnp.zeros_like(weight) for name, weight in weights.items()}
    step = jax.device_put(jnp.zeros((), jnp.int32), NamedSharding(mesh, P()))
    return {"weights": weights, "momentum": momentum, "step": step}


@partial(jax.jit, donate_argnums=0)
def train_step(run: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """Return the run after one momentum step, and the loss. The step number draws the batch."""
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), run["step"]), (64, 16))
    x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))

    def loss_of(weights: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jax.nn.gelu(x @ weights["up"]) @ weights["down"] - jnp.sin(x)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(run["weights"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, run["momentum"], gradients)
    weights = jax.tree.map(lambda w, m: w - 0.1 * m, run["weights"], momentum)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    weights, momentum = jax.lax.with_sharding_constraint(
        (weights, momentum), (shardings, shardings)
    )
    return {"weights": weights, "momentum": momentum, "step": run["step"] + 1}, loss


def main(root: str = "run-sharded", steps: str = "40") -> None:
    """Train, and save every fifth step in the background."""
    run, first = new_run(), 0
    with CheckpointManager(root, save=EverySteps(5), keep=KeepLast(2)) as manager:
        restored = manager.restore(like=run)
        if restored is not None:
            run, first = restored.tree, restored.step + 1
        for step in range(first, int(steps)):
            run, loss = train_step(run)
            print(step, float(loss).hex(), flush=True)
            manager.save(step, run, metrics={"loss": loss})


if __name__ == "__main__":
    main(*sys.argv[1:])
