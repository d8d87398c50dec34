"""A training loop with the Checkpointer of version 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tests.compat.orbax.observe import steps_on_disk


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    training = ocp.v1.training
    policies = {
        "save_decision_policy": training.save_decision_policies.FixedIntervalPolicy(2),
        "preservation_policy": training.preservation_policies.LatestN(2),
    }
    with training.Checkpointer(directory, **policies) as checkpointer:
        before = checkpointer.latest
        did = [
            checkpointer.save(step, {"w": jnp.full(2, step)}, metrics={"loss": 1.0 / (step + 1)})
            for step in range(7)
        ]
        should = [checkpointer.should_save(step) for step in (7, 8)]
    with training.Checkpointer(directory, **policies) as checkpointer:
        target = jax.eval_shape(lambda: {"w": jnp.full(2, 0)})
        return {
            "before": before,
            "did": did,
            "should": should,
            "latest": checkpointer.latest.step,
            "steps": [each.step for each in checkpointer.checkpoints],
            "metrics": [each.metrics for each in checkpointer.checkpoints],
            "newest": checkpointer.load(),
            "fourth": checkpointer.load(4, target),
            "on disk": steps_on_disk(directory),
        }
