"""A restore by PyTreeCheckpointer, with the arguments made of a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"w": jnp.arange(8.0), "host": np.arange(3), "step": 4, "rate": 0.5}
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(directory / "tree", tree)
    restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
    restored = checkpointer.restore(directory / "tree", item=tree, restore_args=restore_args)

    sharding = NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x"))
    target = {"w": jax.ShapeDtypeStruct((8,), jnp.float32), "host": np.zeros(3, np.int64)}
    target |= {"step": 0, "rate": 0.0}
    shardings = {"w": sharding, "host": None, "step": None, "rate": None}
    onto = ocp.checkpoint_utils.construct_restore_args(target, shardings)
    moved = checkpointer.restore(directory / "tree", item=target, restore_args=onto)
    return {
        "kinds": {name: type(each).__name__ for name, each in restore_args.items()},
        "restored": restored,
        "moved": moved,
        "sharded": moved["w"].sharding == sharding,
    }
