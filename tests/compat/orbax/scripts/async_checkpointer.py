"""A save in the background while the loop goes on with new values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    host = np.arange(4.0)
    returned = checkpointer.save(directory / "first", {"w": jnp.ones(3), "host": host})
    host += 100  # after the call, which has copied it
    checkpointer.save(directory / "second", args=ocp.args.PyTreeSave({"w": jnp.zeros(3)}))
    checkpointer.wait_until_finished()
    observed = {
        "returned": returned,
        "first": checkpointer.restore(directory / "first"),
        "second": checkpointer.restore(directory / "second", args=ocp.args.PyTreeRestore()),
        "names": sorted(path.name for path in directory.iterdir()),
    }
    checkpointer.close()
    return observed
