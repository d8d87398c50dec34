"""Numbers, text, random keys, None and empty containers in one tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {
        "bf16": jnp.arange(3, dtype=jnp.bfloat16),
        "int4": jnp.arange(4, dtype=jnp.int4),
        "fp8": jnp.ones((2, 2), jnp.float8_e4m3fn),
        "host": np.arange(3, dtype=np.uint16),
        "key": jax.random.key(7),
        "int": 3,
        "float": 0.25,
        "bool": True,
        "text": "words",
        "none": None,
        "empty": {},
        "list": [],
    }
    with ocp.CheckpointManager(directory) as manager:
        manager.save(0, args=ocp.args.PyTreeSave(tree))
        manager.wait_until_finished()
        restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
        target = manager.restore(0, args=ocp.args.PyTreeRestore(tree, restore_args=restore_args))
        free = manager.restore(0, args=ocp.args.PyTreeRestore())
    numbers = {name: leaf for name, leaf in tree.items() if name != "text"}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "one", numbers)
    with ocp.StandardCheckpointer() as checkpointer:
        standard = checkpointer.restore(directory / "one", numbers)
    return {"target": target, "free": free, "standard": standard}
