"""A step that exists already, an older step, and `force`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import error_of, steps_on_disk


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    def save(step: int, value: float, **options: Any) -> bool:
        tree = {"w": jnp.full(2, value)}
        return manager.save(step, args=ocp.args.StandardSave(tree), **options)

    manager = ocp.CheckpointManager(directory)
    returned = [save(5, 1.0)]
    manager.wait_until_finished()
    returned += [save(5, 2.0), save(4, 3.0)]
    forced = error_of(lambda: save(5, 4.0, force=True))
    manager.wait_until_finished()
    observed = {
        "returned": returned,
        "forced": forced,
        "value": manager.restore(5),
        "steps": list(manager.all_steps()),
        "on disk": steps_on_disk(directory),
    }
    manager.close()
    return observed
