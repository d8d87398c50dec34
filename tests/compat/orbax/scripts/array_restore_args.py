"""Arrays placed on a mesh and cast by ArrayRestoreArgs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    checkpointer.save(directory / "tree", {"w": jnp.arange(16.0).reshape(8, 2), "b": jnp.ones(4)})
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"))
    restore_args = {
        "w": ocp.ArrayRestoreArgs(
            restore_type=jax.Array,
            dtype=jnp.bfloat16,
            mesh=mesh,
            mesh_axes=PartitionSpec("fsdp", "tensor"),
        ),
        "b": ocp.ArrayRestoreArgs(mesh=mesh, mesh_axes=PartitionSpec(), global_shape=(4,)),
    }
    restored = checkpointer.restore(directory / "tree", restore_args=restore_args)
    longer = ocp.ArrayRestoreArgs(
        mesh=mesh, mesh_axes=PartitionSpec(), global_shape=(6,), strict=False
    )
    padded = checkpointer.restore(directory / "tree", restore_args=restore_args | {"b": longer})
    return {
        "restored": restored,
        "specs": [str(restored[name].sharding.spec) for name in ("w", "b")],
        "padded": padded["b"],
    }
