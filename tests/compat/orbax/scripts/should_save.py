"""A loop that computes what is expensive only if a step will be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(save_interval_steps=4, enable_async_checkpointing=False)
    evaluated = []
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in range(12):
            if manager.should_save(step):
                evaluated.append(step)
                manager.save(
                    step,
                    args=ocp.args.Composite(state=ocp.args.PyTreeSave({"w": jnp.full(1, step)})),
                )
        latest = manager.latest_step()
        earlier = [manager.should_save(step) for step in (latest, latest - 1, latest + 4)]
        return {
            "evaluated": evaluated,
            "earlier": earlier,
            "latest": latest,
            "steps": list(manager.all_steps()),
            "read": list(manager.all_steps(read=True)),
        }
