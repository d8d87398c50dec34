"""A run that is killed in the middle of a save, and goes on on another mesh, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import cordwood
from demo.children import INDEX, Told, kill_in_a_save, start, told_by

__all__ = ["Runs", "show_resuming"]

STEPS = 76
EVERY = 15
BEFORE, AFTER = (4, 2), (2, 4)


class Runs(NamedTuple):
    """Where the steps of both runs lie, and what the processes told."""

    whole_root: Path
    root: Path
    whole: Told
    killed: Told
    resumed: Told


def show_resuming(console: Console, folder: Path) -> Runs:
    console.rule("A training run: a transformer over eight devices, Flax and Optax")
    console.print(
        "It learns the text of Python's help topics, a character at a time. Its state, a frozen\n"
        "table of 16.8 MB among it, is cut over a 4x2 mesh of virtual devices."
    )
    whole_root, root = folder / "whole", folder / "run"
    whole = told_by(start(whole_root, BEFORE, every=STEPS - 1, steps=STEPS))
    console.print(
        f"\nNever stopped, 4x2: {STEPS} steps in {whole.end['seconds']:.1f} s, "
        f"held-out loss {whole.end['held_out']:.4f} nats a character."
    )
    child = start(root, BEFORE, every=EVERY, steps=STEPS)
    step = kill_in_a_save(child, root, [3 * EVERY, 4 * EVERY])
    killed = told_by(child, killed=True)
    console.print(f"\nThe same run, saved every {EVERY} steps in the background, until SIGKILL:")
    _show_what_is_left(console, root, step)
    resumed = told_by(start(root, AFTER, every=EVERY, steps=STEPS))
    restored = resumed.restored
    if restored.get("restored") != step - EVERY:
        raise SystemExit(f"expected to go on from step {step - EVERY}, found {restored}")
    console.print(
        f"Gone on with a 2x4 mesh from step {step - EVERY}, read in "
        f"{1e3 * restored['seconds']:.0f} ms. It warned:"
    )
    for note in restored["notes"]:
        console.print(f"  {note.replace(str(folder), '...')}", style="yellow", highlight=False)
    runs = Runs(whole_root, root, whole, killed, resumed)
    _show_losses(console, runs, step)
    _require_same_end(console, runs)
    return runs


def _show_what_is_left(console: Console, root: Path, step: int) -> None:
    files = sorted((root / str(step)).iterdir())
    for path in files:
        found = path.stat()
        how = ", linked" if found.st_nlink > 1 else ""
        console.print(f"  run/{step}/{path.name}: {found.st_size / 1e6:.1f} MB{how}")
    if INDEX in [path.name for path in files]:
        raise SystemExit(f"the save of step {step} had ended when it was killed")
    steps = cordwood.CheckpointManager(root).steps()
    console.print(f"  no {INDEX}: step {step} is none. Whole steps: {steps}")
    if step in steps or steps[-1:] != [step - EVERY]:
        raise SystemExit(f"expected step {step - EVERY} to be the newest, found {steps}")


def _show_losses(console: Console, runs: Runs, step: int) -> None:
    columns = {
        "never stopped, 4x2": runs.whole.losses,
        "killed, 4x2": runs.killed.losses,
        "gone on, 2x4": runs.resumed.losses,
    }
    table = Table(title="Training loss, nats a character")
    table.add_column("step", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    shown = {0, step - EVERY, step - EVERY + 1, step, step + 1, STEPS - 1}
    for number in sorted(shown):
        found = [losses.get(number) for losses in columns.values()]
        texts = ["" if loss is None else f"{float.fromhex(loss):.9f}" for loss in found]
        table.add_row(str(number), *texts)
    console.print(table)
    for name, losses in columns.items():
        for number, loss in losses.items():
            if loss != runs.whole.losses[number]:
                raise SystemExit(f"{name}: the loss of step {number} is another")
    both = {**runs.killed.losses, **runs.resumed.losses}
    if sorted(both) != list(range(STEPS)):
        raise SystemExit("steps are missing")
    console.print(f"All {STEPS} losses are those of the run that never stopped, bit for bit.")


def _require_same_end(console: Console, runs: Runs) -> None:
    last = STEPS - 1
    found = cordwood.diff(runs.whole_root / str(last), runs.root / str(last))
    if not found.equal:
        raise SystemExit(str(found))
    console.print(f"So is the state after step {last}: {found.equal_leaves} leaves are equal.")
