"""Steps with a prefix and with digits of a fixed number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    names: dict[str, dict[str, Any]] = {
        "prefix": {"step_prefix": "ckpt"},
        "padded": {"step_format_fixed_length": 6},
        "both": {"step_prefix": "ckpt", "step_format_fixed_length": 4},
    }
    observed: dict[str, Any] = {
        "error": error_of(lambda: ocp.CheckpointManagerOptions(**names["both"]))
    }
    for name, fields in names.items():
        if observed["error"]:
            break
        options = ocp.CheckpointManagerOptions(max_to_keep=2, **fields)
        root = directory / name
        with ocp.CheckpointManager(root, options=options) as manager:
            for step in (8, 9, 10):
                manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step)}))
            manager.wait_until_finished()
            observed[name] = {
                "steps": list(manager.all_steps()),
                "latest": manager.latest_step(),
                "restored": manager.restore(10),
                "names": sorted(path.name for path in root.iterdir() if path.is_dir()),
            }
    return observed
