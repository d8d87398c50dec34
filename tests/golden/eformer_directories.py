"""The golden directories of eFormer; python -m tests.golden.eformer_directories makes them.

What eformer 0.0.101 makes of `tree()` on eight devices:

- eformer-0.0.101/run/run-6, run-12: two steps of its Checkpointer, each with the trees of two
  prefixes, `<prefix>_structure.json` (which holds pickles) and metadata.json.
- eformer-0.0.101/shards: the sharded safetensors files of its CheckpointManager, of PARAMS; its
  `save_checkpoint` is given the `cpu_offload` that it leaves out of a call (B40).
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

GOLDEN = Path(__file__).parent / "eformer-0.0.101"
RUN, SHARDS = GOLDEN / "run", GOLDEN / "shards"

STEPS = (6, 12)
SHARD_BYTES = 200
PARAMS: dict[str, Any] = {
    "dense": {
        "bias": np.arange(3).astype(ml_dtypes.bfloat16),
        "kernel": np.arange(64, dtype=np.float32).reshape(8, 8),
    },
    "norm": {"scale": np.arange(40, dtype=np.float32)},
}


def tree(step: int) -> dict[str, Any]:
    """Return a train state: sharded arrays, counters, and values that eFormer pickles."""
    import jax
    import jax.numpy as jnp

    spread = jax.NamedSharding(jax.make_mesh((4, 2), ("x", "y")), jax.P("x", "y"))
    dense = PARAMS["dense"]
    params = {"kernel": jax.device_put(dense["kernel"], spread), "bias": jnp.array(dense["bias"])}
    return {
        "params": params,
        "opt": [jnp.zeros((2, 3)), (jnp.int32(step),)],
        "int4": jnp.arange(-3, 4).astype(jnp.int4),
        "step": step,
        "name": "run",
        "none": None,
    }


def main() -> None:
    import jax
    import jax.numpy as jnp
    from eformer.serialization import AsyncCheckpointManager, Checkpointer, base_manager

    shutil.rmtree(GOLDEN, ignore_errors=True)
    manager = AsyncCheckpointManager(use_tensorstore=True)
    run = Checkpointer(str(RUN), None, [], manager=manager)
    for step in STEPS:
        run.save_pytree(tree(step), prefix="state", step=step, extras={"loss": 0.5})
        run.save_pytree(tree(step)["params"], prefix="params", step=step)
    run.wait_until_finished()
    SHARDS.mkdir()
    to_host = partial(base_manager._to_host, cpu_offload=False)
    with mock.patch.object(base_manager, "_to_host", to_host):
        base_manager.CheckpointManager.save_checkpoint(
            jax.tree.map(jnp.array, PARAMS),
            str(SHARDS / "model.safetensors"),
            jax.make_mesh((8,), ("x",)),
            float_dtype=jnp.float32,
            shard_size_gb=SHARD_BYTES / 1024**3,
        )


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    main()
