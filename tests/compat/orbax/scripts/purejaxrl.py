"""The parameters of an agent with its configuration, saved once at the end of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.training import orbax_utils


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    config = {"LR": 0.25, "NUM_ENVS": 4, "ANNEAL": True, "ENV_NAME": "CartPole-v1"}
    params = {"params": {"Dense_0": {"kernel": jnp.arange(12.0).reshape(4, 3)}}}
    checkpoint = {"model": params, "config": config, "returns": jnp.array([1.0, 5.0])}

    checkpointer = ocp.PyTreeCheckpointer()
    save_args = orbax_utils.save_args_from_target(checkpoint)
    saved = checkpointer.save(directory / "agent", checkpoint, save_args=save_args)

    raw = checkpointer.restore(directory / "agent")
    typed = checkpointer.restore(directory / "agent", item=checkpoint)
    kernel = raw["model"]["params"]["Dense_0"]["kernel"]
    return {"saved": saved, "raw": raw, "typed": typed, "sum": float(jax.numpy.sum(kernel))}
