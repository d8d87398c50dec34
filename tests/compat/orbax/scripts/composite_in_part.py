"""One item of several, and an item that no step has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    with ocp.CheckpointManager(directory) as manager:
        manager.save(
            0,
            args=ocp.args.Composite(
                params=ocp.args.PyTreeSave({"w": jnp.ones(3)}),
                extra=ocp.args.JsonSave({"seed": 7}),
            ),
        )
        manager.wait_until_finished()
        only = manager.restore(0, args=ocp.args.Composite(extra=ocp.args.JsonRestore()))
        params = manager.restore(0, args=ocp.args.Composite(params=ocp.args.PyTreeRestore()))
        absent = ocp.args.Composite(opt=ocp.args.PyTreeRestore())
        return {
            "only": dict(only.items()),
            "params": params.params,
            "length": len(params),
            "has": ["params" in params, "extra" in params],
            "absent": error_of(lambda: manager.restore(0, args=absent)),
            "absent attribute": error_of(lambda: params.other),
        }
