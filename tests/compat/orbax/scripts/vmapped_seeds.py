"""A sweep of seeds in the manner of purejaxrl: stacked train states at one path, saved again."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import orbax_utils
from flax.training.train_state import TrainState


class Policy(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2)(nn.tanh(nn.Dense(4)(x)))


network, optimizer = Policy(), optax.adam(1e-3)


@cache
def initial_states() -> TrainState:
    """Return the states of three seeds; compiling this takes longer than all saves."""

    def init(key: jax.Array) -> TrainState:
        params = network.init(key, jnp.zeros(3))
        return TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)

    states: TrainState = jax.vmap(init)(jax.random.split(jax.random.PRNGKey(0), 3))
    return states


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    states = initial_states()
    config = {"LR": 1e-3, "NUM_SEEDS": 3, "ANNEAL": True, "ENV": "CartPole-v1", "HIDDEN": [4]}
    checkpointer = ocp.PyTreeCheckpointer()
    path = directory / "best"
    for update in range(3):
        states = states.replace(step=states.step + update)
        ckpt = {"model": states, "config": config, "returns": jnp.ones((3, 2)) * update}
        save_args = orbax_utils.save_args_from_target(ckpt)
        checkpointer.save(path, ckpt, save_args=save_args, force=True)
    raw = checkpointer.restore(path)
    target = {"model": states, "config": config, "returns": jnp.zeros((3, 2))}
    restored = checkpointer.restore(path, item=target)
    one = jax.tree.map(lambda leaf: leaf[1], raw["model"]["params"])
    again = checkpointer.restore(
        path, item=target, restore_args=orbax_utils.restore_args_from_target(target)
    )
    return {
        "raw config": raw["config"],
        "raw keys": sorted(raw["model"]),
        "config": restored["config"],
        "step": restored["model"].step,
        "type": type(restored["model"]).__name__,
        "opt": type(restored["model"].opt_state[0]).__name__,
        "returns": again["returns"],
        "action": network.apply(one, jnp.ones(3)),
    }
