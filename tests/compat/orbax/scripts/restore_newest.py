"""restore(None): the newest step; and roots without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    with ocp.CheckpointManager(directory / "empty") as manager:
        empty = {
            "latest": manager.latest_step(),
            "best": manager.best_step(),
            "all": list(manager.all_steps()),
            "restore": error_of(lambda: manager.restore(None)),
        }
    with ocp.CheckpointManager(directory / "run") as manager:
        for step in (3, 11):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step)}))
        manager.wait_until_finished()
        newest = manager.restore(None)
        newest_args = manager.restore(None, args=ocp.args.StandardRestore())
        between = error_of(lambda: manager.restore(5, args=ocp.args.StandardRestore()))
    no_create = ocp.CheckpointManagerOptions(create=False)
    absent = error_of(
        lambda: ocp.CheckpointManager(directory / "absent", options=no_create).all_steps()
    )
    return {
        "empty": empty,
        "newest": newest,
        "newest by args": newest_args,
        "between": between,
        "no create": absent,
        "created": (directory / "absent").exists(),
    }
