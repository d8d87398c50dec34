"""Retention: the last steps, and every fourth for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import steps_on_disk


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    observed = {}
    for name, fields in {
        "last": {"max_to_keep": 2},
        "period": {"max_to_keep": 2, "keep_period": 4},
        "all": {},
    }.items():
        options = ocp.CheckpointManagerOptions(**fields)
        with ocp.CheckpointManager(directory / name, options=options) as manager:
            for step in range(7):
                manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step)}))
            manager.wait_until_finished()
            observed[name] = [list(manager.all_steps()), manager.latest_step()]
        observed[name] += [steps_on_disk(directory / name)]
    return observed
