"""Policies in place of fields: when to save, and what to preserve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import steps_on_disk


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    managers = ocp.checkpoint_managers
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=managers.FixedIntervalPolicy(2),
        preservation_policy=managers.AnyPreservationPolicy(
            [managers.LatestN(2), managers.EveryNSteps(6)]
        ),
    )
    with ocp.CheckpointManager(directory, options=options) as manager:
        did = [
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step)}))
            for step in range(11)
        ]
        manager.wait_until_finished()
        return {
            "did": did,
            "steps": list(manager.all_steps()),
            "on disk": steps_on_disk(directory),
        }
