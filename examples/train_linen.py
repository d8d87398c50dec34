"""Flax linen and Optax: a TrainState that is killed at any moment goes on, bit for bit.

    python examples/train_linen.py [root] [steps]

Kill it and run it again: the losses are those of a run that was never stopped.
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
    """A small network with dropout, so that the run depends on its keys."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = nn.gelu(nn.Dense(64)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(1)(x)[:, 0]


def new_run() -> dict[str, Any]:
    """What a run needs to go on: the train state, and the key that all its randomness is from."""
    model = Model()
    params = model.init(jax.random.key(0), jnp.zeros((1, 8)), train=False)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))
    # Flax starts at the Python int 0 and has an array after one step: an array from the start.
    return {"state": state.replace(step=jnp.zeros((), jnp.int32)), "key": jax.random.key(1)}


@partial(jax.jit, donate_argnums=0)
def train_step(run: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """One step on a batch that its key draws."""
    key, data_key, dropout_key = jax.random.split(run["key"], 3)
    x = jax.random.normal(data_key, (128, 8))
    state = run["state"]

    def loss_of(params: Any) -> jax.Array:
        y = state.apply_fn({"params": params}, x, train=True, rngs={"dropout": dropout_key})
        return jnp.mean((y - jnp.sin(x).sum(1)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return {"state": state.apply_gradients(grads=gradients), "key": key}, loss


def main(root: str = "run-linen", steps: str = "40") -> None:
    """Train, saving every fifth step in the background."""
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
