"""One checkpoint by StandardCheckpointer: save, look at it, restore with and without a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "layers": [jnp.ones(2), jnp.int8(4)], "n": 5}
    checkpointer = ocp.StandardCheckpointer()
    returned = checkpointer.save(directory / "one", tree)
    checkpointer.wait_until_finished()
    again = error_of(lambda: checkpointer.save(directory / "one", tree))
    checkpointer.save(directory / "one", jax.tree.map(lambda x: x + 1, tree), force=True)
    checkpointer.wait_until_finished()
    metadata = checkpointer.metadata(directory / "one")
    shapes = getattr(metadata, "item_metadata", metadata)
    observed = {
        "returned": returned,
        "again": again,
        "free": checkpointer.restore(directory / "one"),
        "target": checkpointer.restore(directory / "one", jax.eval_shape(lambda: tree)),
        "shape": tuple(shapes["w"].shape),
        "dtype": str(shapes["w"].dtype),
        "absent": error_of(lambda: checkpointer.restore(directory / "two")),
    }
    checkpointer.close()
    return observed
