"""Trains, saves, and goes on in a new process: its loss is that of the run that never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import cordwood
from demo.training import held_out_loss, new_run, text_as_codes, train

__all__ = ["resume", "show_resuming"]

SECONDS = 8.0
STEPS = 100


def show_resuming(console: Console, folder: Path) -> None:
    console.rule("A training run: Flax and Optax, on Python's help topics")
    codes = text_as_codes()
    console.print(f"{len(codes):,} characters of real text; the last tenth is held out.")
    run = new_run()
    path = folder / "run.safetensors"
    table = Table(title="Held-out loss, nats a character")
    table.add_column("step", justify="right")
    table.add_column("this process", justify="right")
    table.add_column("a new process", justify="right")
    step = 0
    start = time.perf_counter()
    while step == 0 or time.perf_counter() - start < SECONDS:
        table.add_row(str(step), f"{held_out_loss(run, codes):.6f}", "")
        run = train(run, codes, STEPS)
        step += STEPS

    cordwood.save(path, run)
    here = [held_out_loss(run, codes)]
    for _ in range(3):
        run = train(run, codes, STEPS)
        here.append(held_out_loss(run, codes))
    there = _in_a_new_process(path, rounds=3)
    for i, (ours, theirs) in enumerate(zip(here, there, strict=True)):
        note = " (saved, loaded)" if i == 0 else ""
        table.add_row(f"{step + i * STEPS}{note}", f"{ours:.6f}", f"{theirs:.6f}")
    console.print(table)
    if there != here:
        raise SystemExit("the new process did not go on where this one stopped")
    console.print(
        f"Saved {path.stat().st_size / 1e6:.1f} MB (train state and key) at step {step}; "
        "the new process went on with exactly the same losses."
    )


def resume(path: Path, rounds: int) -> list[float]:
    """Load a run and go on; the losses as loaded and after each round."""
    codes = text_as_codes()
    run = cordwood.load(path, like=new_run(seed=1))
    losses = [held_out_loss(run, codes)]
    for _ in range(rounds):
        run = train(run, codes, STEPS)
        losses.append(held_out_loss(run, codes))
    return losses


def _in_a_new_process(path: Path, rounds: int) -> list[float]:
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "demo.resuming", str(path), str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root)
    losses: list[float] = json.loads(done.stdout)
    return losses


if __name__ == "__main__":
    print(json.dumps(resume(Path(sys.argv[1]), int(sys.argv[2]))))
