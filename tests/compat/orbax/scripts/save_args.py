"""Parameters written in half precision, by SaveArgs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"params": {"w": jnp.linspace(0, 1, 5)}, "count": jnp.int32(3)}
    save_args = {
        "params": jax.tree.map(
            lambda _: ocp.SaveArgs(dtype=jnp.dtype(jnp.bfloat16)), tree["params"]
        ),
        "count": ocp.SaveArgs(),
    }
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(directory / "half", tree, save_args=save_args)
    with ocp.CheckpointManager(directory / "run") as manager:
        manager.save(1, args=ocp.args.PyTreeSave(tree, save_args=save_args))
        manager.wait_until_finished()
        restored = manager.restore(1, args=ocp.args.PyTreeRestore())
    return {"half": checkpointer.restore(directory / "half"), "restored": restored}
