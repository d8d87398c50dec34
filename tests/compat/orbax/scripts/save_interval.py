"""A loop that calls save at each step and leaves the choice to the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import steps_on_disk


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(save_interval_steps=3, max_to_keep=3)
    manager = ocp.CheckpointManager(directory, options=options)
    should, did = [], []
    for step in range(1, 9):
        should.append(manager.should_save(step))
        did.append(manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step)})))
    forced = manager.save(10, args=ocp.args.StandardSave({"w": jnp.zeros(2)}), force=True)
    manager.wait_until_finished()
    observed = {
        "should": should,
        "did": did,
        "forced": forced,
        "steps": list(manager.all_steps()),
        "latest": manager.latest_step(),
        "on disk": steps_on_disk(directory),
        "preempted": manager.reached_preemption(10),
    }
    manager.close()
    return observed
