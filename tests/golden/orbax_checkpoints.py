"""Orbax checkpoints; python -m tests.golden.orbax_checkpoints makes them.

What orbax-checkpoint 0.12.8 makes of `tree()` on eight devices in each of its layouts. The files
`commit_success.txt` are left out: they hold the path at which they were written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "orbax"
WRITTEN_BY = "0.12.8"

# The options of `PyTreeCheckpointHandler`; None: the calls of version 1.
LAYOUTS: dict[str, dict[str, bool] | None] = {
    "v0-zarr2-ocdbt": {"use_ocdbt": True, "use_zarr3": False},
    "v0-zarr2-files": {"use_ocdbt": False, "use_zarr3": False},
    "v0-zarr3-ocdbt": {"use_ocdbt": True, "use_zarr3": True},
    "v0-zarr3-files": {"use_ocdbt": False, "use_zarr3": True, "use_compression": False},
    "v1": None,
}


def tree() -> dict[str, Any]:
    """Eight shards of 1 KiB and more, and one leaf of each kind."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    mesh = jax.make_mesh((4, 2), ("x", "y"))
    kernel = np.random.default_rng(7).random((64, 48), np.float32)
    return {
        "params": {
            "kernel": jax.device_put(kernel, jax.NamedSharding(mesh, jax.P("x", "y"))),
            "bias": jnp.arange(5, dtype=jnp.bfloat16),
            "a.b/c": jnp.ones((2, 1), jnp.float8_e5m2),
        },
        "layers": [np.arange(15, dtype=np.int16).reshape(3, 5), (jnp.int8(-3), [jnp.zeros(2)])],
        "int4": jnp.arange(-3, 4).astype(jnp.int4),
        "key": jax.random.key(11),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
        "step": 7,
        "large": 2**60,
        "rate": 0.1,
        "done": False,
        "name": "é \x00",
        "none": None,
        "empty": {"dict": {}, "list": [], "tuple": ()},
    }


def write(folder: Path, layout: str, tree: Any) -> None:
    """Save a tree as the real library does."""
    import orbax.checkpoint as ocp

    options = LAYOUTS[layout]
    if options is None:
        from orbax.checkpoint import v1

        v1.save(folder, tree)
        return
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))
        checkpointer.wait_until_finished()


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name in LAYOUTS:
        with tempfile.TemporaryDirectory() as temporary:
            write(Path(temporary) / name, name, tree())
            ignored = shutil.ignore_patterns("commit_success.txt")
            shutil.copytree(Path(temporary) / name, GOLDEN / name, ignore=ignored)
