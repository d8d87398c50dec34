"""Runs of `flax.training.checkpoints` of 2023, by itself and with Orbax behind it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flax
import jax.numpy as jnp
import numpy as np
from flax.training import checkpoints

from tests.foreign_files.make.values import write_values


def tree(step: int) -> dict[str, Any]:
    return {
        "params": {"kernel": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) + step},
        "opt": [np.full(3, step, np.int32), (jnp.zeros(2, jnp.bfloat16), 0.5)],
        "step": step,
    }


def main(folder: Path) -> None:
    for name, by_orbax in (("flax.run", False), ("orbax.run", True)):
        flax.config.update("flax_use_orbax_checkpointing", by_orbax)
        root = folder / name
        for step in (9, 10):
            checkpoints.save_checkpoint(root, tree(step), step, keep=2)
        values = {
            step: checkpoints.restore_checkpoint(root, target=None, step=step) for step in (9, 10)
        }
        write_values(root, values)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
