"""A tree of zarr arrays without an index; python -m tests.golden.zarr_trees makes it.

jax-0.10.2-step-100: what jax's GlobalAsyncCheckpointManager, which Levanter saves with, makes of
`tree()` on eight devices, an array in each directory, and the metadata.json of Levanter's.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "jax-0.10.2-step-100"


def tree() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    spread = jax.NamedSharding(jax.make_mesh((4, 2), ("x", "y")), jax.P("x", "y"))
    return {
        "model": {
            "embed": jax.device_put(jnp.arange(48.0).reshape(8, 6), spread),
            "layers": {"0": jnp.arange(4, dtype=jnp.bfloat16), "1": jnp.ones((2, 0))},
        },
        "training_step": jnp.int32(100),
    }


def main() -> None:
    import jax
    from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

    shutil.rmtree(GOLDEN, ignore_errors=True)
    leaves = jax.tree_util.tree_leaves_with_path(tree())
    paths = ["/".join((str(GOLDEN), *(key.key for key in path))) for path, _ in leaves]
    manager = GlobalAsyncCheckpointManager()
    manager.serialize_with_paths([leaf for _, leaf in leaves], paths)
    manager.wait_until_finished()
    metadata = {"step": 100, "timestamp": "2026-01-01T00:00:00", "is_temporary": False}
    (GOLDEN / "metadata.json").write_text(json.dumps(metadata))


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    main()
