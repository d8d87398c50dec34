"""Several items by name, each with its checkpointer, as before `args=` came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    checkpointers = {
        "state": ocp.PyTreeCheckpointer(),
        "config": ocp.Checkpointer(ocp.JsonCheckpointHandler()),
    }
    options = ocp.CheckpointManagerOptions(max_to_keep=3)
    manager = ocp.CheckpointManager(directory, checkpointers, options)
    state = {"w": jnp.arange(4, dtype=jnp.bfloat16), "step": 3}
    saved = manager.save(3, {"state": state, "config": {"name": "base", "layers": [2, 3]}})
    restored = manager.restore(3)
    with_target = manager.restore(3, items={"state": state})
    return {
        "saved": saved,
        "names": sorted(restored.keys()),
        "state": restored["state"],
        "config": restored["config"],
        "with_target": with_target["state"],
        "steps": list(manager.all_steps()),
    }
