"""A training run as a process of its own: python -m demo.training ROOT ROWS COLUMNS EVERY STEPS.

It goes on from the newest step below ROOT, on a mesh of ROWS x COLUMNS devices, saves every so many
steps, and prints a line of JSON for all that happens.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from cordwood import CheckpointManager, EverySteps, KeepLast, SaveReport
from demo.transformer import held_out_loss, new_run, step_on, text_as_codes


def main(root: str, rows: int, columns: int, every: int, steps: int) -> None:
    devices = np.array(jax.devices()[: rows * columns])
    mesh = Mesh(devices.reshape(rows, columns), ("data", "model"))
    run, codes, first = new_run(mesh), text_as_codes(), 0
    train_step = step_on(mesh, run)
    with CheckpointManager(root, save=EverySteps(every), keep=KeepLast(3), on_save=tell) as manager:
        begun = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restored = manager.restore(like=run)
        if restored is not None:
            run, first = jax.block_until_ready(restored.tree), restored.step + 1
            notes = [str(warning.message) for warning in caught]
            _print(restored=restored.step, seconds=time.perf_counter() - begun, notes=notes)
        begun = time.perf_counter()
        for step in range(first, steps):
            run, loss = train_step(run, codes)
            _print(step=step, loss=float(loss).hex())
            manager.save(step, run, metrics={"loss": loss})
        _print(seconds=time.perf_counter() - begun, held_out=float(held_out_loss(run, codes)))


def tell(report: SaveReport) -> None:
    """Print what a save took."""
    _print(saved=report._asdict())


def _print(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")  # one write: saves report from their own thread
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
