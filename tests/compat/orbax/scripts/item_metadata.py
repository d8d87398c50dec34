"""Shapes of a step whose code is unknown, to make a target of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "layers": [jnp.zeros(4, jnp.int32)], "step": 2}
    with ocp.CheckpointManager(directory / "single") as manager:
        manager.save(1, args=ocp.args.StandardSave(tree))
    with ocp.CheckpointManager(
        directory / "single", item_handlers=ocp.StandardCheckpointHandler()
    ) as manager:
        single = manager.item_metadata(1)
        target: dict[str, Any] = {"w": jax.ShapeDtypeStruct(single["w"].shape, single["w"].dtype)}
        target |= {"layers": [jax.ShapeDtypeStruct((4,), jnp.int32)], "step": 0}
        restored = manager.restore(1, args=ocp.args.StandardRestore(target))
    with ocp.CheckpointManager(directory / "several") as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(tree)))
    handlers = {"state": ocp.StandardCheckpointHandler()}
    with ocp.CheckpointManager(directory / "several", item_handlers=handlers) as manager:
        several = manager.item_metadata(1)
    return {
        "single": [single["w"].shape, str(single["w"].dtype), single["layers"][0].shape],
        "several": [sorted(several.keys()), several["state"]["w"].shape],
        "attribute": several.state["layers"][0].shape,
        "restored": restored,
    }
