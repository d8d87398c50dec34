"""A sharded state restored onto another mesh, by an abstract tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    state = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), sharding)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "sharded", state)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    other = NamedSharding(jax.make_mesh((2, 4), ("x", "y")), PartitionSpec("y"))
    onto = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=other)}
    with ocp.StandardCheckpointer() as checkpointer:
        same = checkpointer.restore(directory / "sharded", abstract)
        moved = checkpointer.restore(directory / "sharded", onto)
    return {
        "abstract": [abstract["w"].shape, str(abstract["w"].dtype)],
        "same": same,
        "moved": moved,
        "shardings": [same["w"].sharding == sharding, moved["w"].sharding == other],
    }
