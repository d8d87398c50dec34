"""A part of a tree, by `partial_restore=True`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"params": {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}, "opt": {"mu": jnp.ones(4)}}
    with ocp.CheckpointManager(directory) as manager:
        manager.save(0, args=ocp.args.PyTreeSave(tree))
        manager.wait_until_finished()
        item = {"params": {"w": jax.ShapeDtypeStruct((2, 2), jnp.float32)}}
        restored = manager.restore(
            0,
            args=ocp.args.PyTreeRestore(
                item=item,
                restore_args=ocp.checkpoint_utils.construct_restore_args(item),
                partial_restore=True,
            ),
        )
    return {"restored": restored}
