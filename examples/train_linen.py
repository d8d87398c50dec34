"""A run with Flax linen and Optax that can be killed at any time and resumes bit for bit.

    python examples/train_linen.py [root] [steps]

Kill it and run it again: the losses are the same as in a run that was never stopped.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from cordwood import CheckpointManager, EverySteps, KeepBest, KeepLast


class Model(nn.Module):
    """A small network with dropout, so that the run depends on its PRNG keys."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = nn.gelu(nn.Dense(64)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(1)(x)[:, 0]


def new_run() -> dict[str, Any]:
    """Return everything that a run needs to resume: the train state and the PRNG key."""
    model = Model()
    params = model.init(jax.random.key(0), jnp.zeros((1, 8)), train=False)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))
    # Flax starts with the Python int 0, and has an array after one step. Use an array at once.
    return {"state": state.replace(step=jnp.zeros((), jnp.int32)), "key": jax.random.key(1)}


@partial(jax.jit, donate_argnums=0)
def train_step(run: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """Return the run after one step on a batch drawn from its key, and the loss."""
    key, data_key, dropout_key = jax.random.split(run["key"], 3)
    x = jax.random.normal(data_key, (128, 8))
    state = run["state"]

    def loss_of(params: Any) -> jax.Array:
        y = state.apply_fn({"params": params}, x, train=True, rngs={"dropout": dropout_key})
        return jnp.mean((y - jnp.sin(x).sum(1)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return {"state": state.apply_gradients(grads=gradients), "key": key}, loss


def main(root: str = "run-linen", steps: str = "40") -> None:
    """Train, and save every fifth step in the background."""
    run, first = new_run(), 0
    keep = KeepLast(2) | KeepBest(1, "loss")
    with CheckpointManager(root, save=EverySteps(5), keep=keep) as manager:
        restored = manager.restore(like=run)
        if restored is not None:
            run, first = restored.tree, restored.step + 1
        for step in range(first, int(steps)):
            run, loss = train_step(run)
            print(step, float(loss).hex(), flush=True)
            manager.save(step, run, metrics={"loss": loss})


if __name__ == "__main__":
    main(*sys.argv[1:])
