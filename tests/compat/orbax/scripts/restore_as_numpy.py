"""Weights for another framework: all arrays as numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"block": [{"w": jnp.arange(4, dtype=jnp.bfloat16)}, {"w": jnp.zeros((2, 1))}], "n": 3}
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(directory / "tree", tree)
    numpy_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    floats = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.float32), tree["block"]
    )
    return {
        "as numpy": checkpointer.restore(directory / "tree", restore_args=numpy_args)["block"],
        "cast": checkpointer.restore(
            directory / "tree", restore_args={"block": floats, "n": ocp.RestoreArgs()}
        ),
    }
