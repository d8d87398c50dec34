"""The steps with the lowest loss, and the one with the highest accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import steps_on_disk

LOSSES = [0.5, 0.25, 1.0, 0.125, 0.75]


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    lowest = ocp.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min"
    )
    highest = ocp.CheckpointManagerOptions(
        max_to_keep=1,
        best_fn=lambda metrics: metrics["accuracy"],
        best_mode="max",
        keep_checkpoints_without_metrics=False,
    )
    return {
        "lowest": saved_by(ocp, directory / "lowest", lowest),
        "highest": saved_by(ocp, directory / "highest", highest),
    }


def saved_by(ocp: Any, root: Path, options: Any) -> dict[str, Any]:
    with ocp.CheckpointManager(root, options=options) as manager:
        for step, loss in enumerate(LOSSES):
            manager.save(
                step,
                args=ocp.args.StandardSave({"w": jnp.full(2, step)}),
                metrics={"loss": loss, "accuracy": 1 - loss},
            )
        manager.wait_until_finished()
        best = manager.best_step()
        return {
            "best": best,
            "latest": manager.latest_step(),
            "steps": list(manager.all_steps()),
            "metrics": manager.metrics(best),
            "restored": manager.restore(best),
            "on disk": steps_on_disk(root),
        }
