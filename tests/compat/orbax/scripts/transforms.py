"""Parameters alone of a checkpoint that holds more, by `transforms={}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    params = {"embed": jnp.arange(8.0).reshape(4, 2), "head": jnp.ones((2, 2), jnp.bfloat16)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory / "params", {"params": params, "opt": {"mu": jnp.zeros(3)}})
    with ocp.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(directory / "params")
        tree = getattr(metadata, "item_metadata", metadata)
        item = {"params": tree["params"]}
        restored = checkpointer.restore(
            directory / "params",
            ocp.args.PyTreeRestore(
                item=item,
                restore_args=jax.tree.map(
                    lambda _: ocp.ArrayRestoreArgs(restore_type=np.ndarray, dtype=np.float32), item
                ),
                transforms={},
            ),
        )
    return {"names": sorted(restored), "params": restored["params"]}
