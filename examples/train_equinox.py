"""A run with Equinox and Optax that saves a module, its optimizer and a data iterator.

    python examples/train_equinox.py [root] [steps]

Kill it and run it again: the losses are the same as in a run that was never stopped.
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
    """An iterator with a state, like those of Grain: `get_state` and `set_state`."""

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
def train_step(x: jax.Array, run: Any) -> tuple[Any, jax.Array]:
    """Return the model and the optimizer's state after one step on a batch, and the loss."""

    def loss_of(model: Any) -> jax.Array:
        return jnp.mean((jax.vmap(model)(x)[:, 0] - jnp.sin(x).sum(1)) ** 2)

    model, state = run
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return (eqx.apply_updates(model, updates), state), loss


def main(root: str = "run-equinox", steps: str = "40") -> None:
    """Train, and save every fifth step in the background."""
    model = eqx.nn.MLP(8, 1, 64, 2, key=jax.random.key(0))
    run = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    batches, first = Batches(), 0
    with CheckpointManager(root, save=EverySteps(5), keep=KeepLast(2)) as manager:
        # A module also holds functions. Save only its arrays; `combine` adds the rest again.
        restored = manager.restore(like=eqx.filter(run, eqx.is_array), items={"data": batches})
        if restored is not None:
            run, first = eqx.combine(restored.tree, run), restored.step + 1
        for step in range(first, int(steps)):
            run, loss = train_step(jnp.asarray(next(batches)), run)
            print(step, float(loss).hex(), flush=True)
            arrays = eqx.filter(run, eqx.is_array)
            manager.save(step, arrays, metrics={"loss": loss}, items={"data": batches})


if __name__ == "__main__":
    main(*sys.argv[1:])
