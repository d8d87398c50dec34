"""Equinox and Optax: the arrays of a module and of its optimizer, and an iterator over data.

    python examples/train_equinox.py [root] [steps]

Kill it and run it again: the losses are those of a run that was never stopped.
"""

from __future__ import annotations

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cordwood import CheckpointManager, EverySteps, KeepLast

optimizer = optax.adamw(1e-2)


class Batches:
    """An iterator with a state, as Grain's are: `get_state` and `set_state`."""

    def __init__(self) -> None:
        self._taken = 0

    def __next__(self) -> np.ndarray[Any, Any]:
        self._taken += 1
        return np.random.default_rng(self._taken).standard_normal((128, 8), np.float32)

    def get_state(self) -> dict[str, int]:
        return {"taken": self._taken}

    def set_state(self, state: dict[str, int]) -> None:
        self._taken = state["taken"]


@eqx.filter_jit(donate="all-except-first")
def train_step(x: jax.Array, model: Any, state: Any) -> tuple[Any, Any, jax.Array]:
    """One step on a batch."""

    def loss_of(model: Any) -> jax.Array:
        return jnp.mean((jax.vmap(model)(x)[:, 0] - jnp.sin(x).sum(1)) ** 2)

    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


def main(root: str = "run-equinox", steps: str = "40") -> None:
    """Train, saving every fifth step in the background."""
    model = eqx.nn.MLP(8, 1, 64, 2, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    run, batches, first = (arrays, optimizer.init(arrays)), Batches(), 0
    with CheckpointManager(root, save=EverySteps(5), keep=KeepLast(2)) as manager:
        restored = manager.restore(like=run, items={"data": batches})
        if restored is not None:
            run, first = restored.tree, restored.step + 1
        model, state = eqx.combine(run[0], rest), run[1]
        for step in range(first, int(steps)):
            model, state, loss = train_step(jnp.asarray(next(batches)), model, state)
            print(step, float(loss).hex(), flush=True)
            run = (eqx.filter(model, eqx.is_array), state)
            manager.save(step, run, metrics={"loss": loss}, items={"data": batches})


if __name__ == "__main__":
    main(*sys.argv[1:])
