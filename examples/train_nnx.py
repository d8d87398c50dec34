"""A run with Flax NNX that saves a model, its optimizer and its random streams as one tree.

    python examples/train_nnx.py [root] [steps]

Kill it and run it again: the losses are the same as in a run that was never stopped.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from cordwood import CheckpointManager, EverySteps, KeepLast


class Model(nnx.Module):
    """A small network with dropout, whose keys are part of the state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(8, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(nnx.gelu(self.hidden(x))))[:, 0]


@nnx.jit
def train_step(model: Model, optimizer: Any, key: jax.Array) -> jax.Array:
    """Update the model and the optimizer on a batch drawn from the key; return the loss."""
    x = jax.random.normal(key, (128, 8))

    def loss_of(model: Model) -> jax.Array:
        return jnp.mean((model(x) - jnp.sin(x).sum(1)) ** 2)

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main(root: str = "run-nnx", steps: str = "40") -> None:
    """Train, and save every fifth step in the background."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    first = 0
    with CheckpointManager(root, save=EverySteps(5), keep=KeepLast(2)) as manager:
        restored = manager.restore(like=nnx.state((model, optimizer)))
        if restored is not None:
            nnx.update((model, optimizer), restored.tree)
            first = restored.step + 1
        for step in range(first, int(steps)):
            loss = train_step(model, optimizer, jax.random.key(step))
            print(step, float(loss).hex(), flush=True)
            manager.save(step, nnx.state((model, optimizer)), metrics={"loss": loss})


if __name__ == "__main__":
    main(*sys.argv[1:])
