"""A training run as its own process: python -m demo.training ROOT ROWS COLUMNS EVERY STEPS.

It resumes from the newest step in ROOT, on a mesh of ROWS x COLUMNS devices, saves every EVERY
steps, and prints a line of JSON for each event.
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

from cordwood import CheckpointManager, EverySteps, KeepLast
from cordwood.results import SaveReport
from demo.transformer import held_out_loss, new_run, step_on, text_as_codes


def main(root: str, rows: int, columns: int, every: int, steps: int) -> None:
    devices = np.array(jax.devices()[: rows * columns])
    mesh = Mesh(devices.reshape(rows, columns), ("data", "model"))
    run, codes, first = new_run(mesh), text_as_codes(), 0
    train_step = step_on(mesh, run)
    with CheckpointManager(
        root, save=EverySteps(every), keep=KeepLast(3), on_save=report
    ) as manager:
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restored = manager.restore(like=run)
        if restored is not None:
            run, first = jax.block_until_ready(restored.tree), restored.step + 1
            notes = [str(warning.message) for warning in caught]
            _print(restored=restored.step, seconds=time.perf_counter() - start, notes=notes)
        start = time.perf_counter()
        for step in range(first, steps):
            run, loss = train_step(run, codes)
            _print(step=step, loss=float(loss).hex())
            manager.save(step, run, metrics={"loss": loss})
        _print(seconds=time.perf_counter() - start, held_out=float(held_out_loss(run, codes)))


def report(save: SaveReport) -> None:
    """Print the report of a save."""
    _print(saved=save._asdict())


def _print(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")  # one write: saves report from their own thread
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
