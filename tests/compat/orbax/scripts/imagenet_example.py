"""Epochs of a classifier, whose state is restored where a run began before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    first = train(ocp, directory, epochs=2)
    second = train(ocp, directory, epochs=4)
    return {"first": first, "second": second}


def train(ocp: Any, directory: Path, *, epochs: int) -> dict[str, Any]:
    state = create_state()
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    with ocp.CheckpointManager(directory, options=options) as manager:
        begin = manager.latest_step() or 0
        if begin:
            state = manager.restore(begin, args=ocp.args.StandardRestore(state))
        for epoch in range(begin, epochs):
            gradients = {"kernel": jnp.ones((3, 2)) * epoch, "bias": jnp.ones(2)}
            state = state.apply_gradients(grads=gradients)
            manager.save(epoch + 1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        return {
            "begin": begin,
            "steps": list(manager.all_steps()),
            "step": int(state.step),
            "params": state.params,
            "momentum": state.opt_state[0].trace,
        }


def create_state() -> TrainState:
    params = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
    optimizer = optax.sgd(0.125, momentum=0.5)
    return TrainState.create(apply_fn=lambda *inputs: None, params=params, tx=optimizer)
