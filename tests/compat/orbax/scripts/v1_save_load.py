"""One checkpoint by the functions of version 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    v1 = ocp.v1
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "layers": [jnp.ones(2)], "step": 4}
    target = jax.tree.map(jnp.zeros_like, tree) | {"step": 0}
    returned = v1.save(directory / "tree", tree)
    again = error_of(lambda: v1.save(directory / "tree", tree))
    return {
        "returned": returned,
        "again": again,
        "free": v1.load(directory / "tree"),
        "target": v1.load(directory / "tree", target),
        "absent": error_of(lambda: v1.load(directory / "absent")),
    }
