"""An evaluation that knows nothing of the model: the metadata of a step is the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {
        "params": {"w": jnp.ones((2, 3), jnp.bfloat16), "layers": [jnp.zeros(4, jnp.int32)]},
        "table": np.arange(3.0),
        "step": 2,
        "lr": 0.5,
    }
    with ocp.CheckpointManager(directory / "run") as manager:
        manager.save(1, args=ocp.args.PyTreeSave({**tree, "name": "tiny"}))
        manager.save(2, args=ocp.args.PyTreeSave(tree))
    handler = ocp.PyTreeCheckpointHandler()
    with ocp.CheckpointManager(directory / "run", item_handlers=handler) as manager:
        metadata = manager.item_metadata(1)
        restore_args = ocp.checkpoint_utils.construct_restore_args(metadata)
        with_args = ocp.args.PyTreeRestore(metadata, restore_args=restore_args)
        only_args = ocp.args.PyTreeRestore(restore_args=restore_args)
        restored = [
            manager.restore(1, args=ocp.args.PyTreeRestore(metadata)),
            manager.restore(1, args=with_args),
            manager.restore(1, args=only_args),
        ]
        numbers = jax.tree.map(ocp.utils.to_shape_dtype_struct, manager.item_metadata(2))
        shapes = {name: str(leaf.dtype) for name, leaf in numbers["params"].items() if name == "w"}
    return {"keys": sorted(metadata), "restored": restored, "shapes": shapes}
