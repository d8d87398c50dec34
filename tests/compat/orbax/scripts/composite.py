"""A state, an average of its parameters and JSON, saved and restored in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    state = {"params": {"w": jnp.arange(6.0).reshape(2, 3)}, "step": jnp.int32(10)}
    ema = {"w": jnp.full((2, 3), 0.5)}
    meta = {"epoch": 1, "tokens": [1, 2], "name": "run"}
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    names = ("state", "ema", "meta")
    with ocp.CheckpointManager(directory, options=options, item_names=names) as manager:
        saved = manager.save(
            10,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                ema=ocp.args.StandardSave(ema),
                meta=ocp.args.JsonSave(meta),
            ),
        )
        manager.wait_until_finished()
    with ocp.CheckpointManager(directory, item_names=names) as manager:
        restored = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(jax.eval_shape(lambda: state)),
                ema=ocp.args.StandardRestore(),
                meta=ocp.args.JsonRestore(),
            ),
        )
        return {
            "saved": saved,
            "names": sorted(restored.keys()),
            "state": restored.state,
            "ema": restored["ema"],
            "meta": restored.meta,
            "steps": list(manager.all_steps()),
        }
