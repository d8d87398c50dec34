"""Several checkpointables in each step, by the Checkpointer of version 1, in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    with ocp.v1.training.Checkpointer(directory) as checkpointer:
        response = checkpointer.save_async(0, {"w": jnp.zeros(2)})
        did = response.result()
        saved = checkpointer.save_checkpointables(
            1, {"state": {"w": jnp.ones(2)}, "ema": {"w": jnp.full(2, 0.5)}}
        )
        loaded = checkpointer.load_checkpointables(1)
        partly = checkpointer.load_checkpointables(1, {"ema": None})
        return {
            "did": did,
            "saved": saved,
            "names": sorted(loaded),
            "state": loaded["state"],
            "ema": loaded["ema"],
            "partly": partly,
            "first": checkpointer.load(0),
            "latest": checkpointer.latest.step,
        }
