"""The position of a Grain iterator beside the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain  # type: ignore[import-untyped]
import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    batches = iter(make_dataset())
    seen = [next(batches).tolist() for _ in range(2)]
    with ocp.CheckpointManager(directory) as manager:
        manager.save(
            2,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave({"w": jnp.ones(2)}),
                data=grain.checkpoint.CheckpointSave(batches),
            ),
        )
        manager.wait_until_finished()
        expected = next(batches).tolist()
        restored = manager.restore(
            2,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(),
                data=grain.checkpoint.CheckpointRestore(iter(make_dataset())),
            ),
        )
    return {
        "seen": seen,
        "goes on": next(restored["data"]).tolist() == expected,
        "state": restored["state"],
    }


def make_dataset() -> Any:
    return grain.MapDataset.range(100).batch(4).to_iter_dataset()
