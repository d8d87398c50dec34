"""A run that is killed in the middle of a save, and resumes on another mesh, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import cordwood
from demo.children import INDEX, RunOutput, kill_in_a_save, read_output, start

__all__ = ["Runs", "show_resuming"]

STEPS = 76
EVERY = 15
BEFORE, AFTER = (4, 2), (2, 4)


class Runs(NamedTuple):
    """The directories of both runs, and the output of the processes."""

    whole_root: Path
    root: Path
    whole: RunOutput
    killed: RunOutput
    resumed: RunOutput


def show_resuming(console: Console, folder: Path) -> Runs:
    console.rule("A training run: a transformer over eight devices, Flax and Optax")
    console.print(
        "It learns the text of Python's help topics, one character at a time. Its state, which\n"
        "includes a frozen table of 16.8 MB, is sharded over a 4x2 mesh of virtual devices."
    )
    whole_root, root = folder / "whole", folder / "run"
    whole = read_output(start(whole_root, BEFORE, every=STEPS - 1, steps=STEPS))
    console.print(
        f"\nNever stopped, 4x2: {STEPS} steps in {whole.end['seconds']:.1f} s, "
        f"held-out loss {whole.end['held_out']:.4f} nats per character."
    )
    child = start(root, BEFORE, every=EVERY, steps=STEPS)
    step = kill_in_a_save(child, root, [3 * EVERY, 4 * EVERY])
    killed = read_output(child, killed=True)
    console.print(f"\nThe same run, saved every {EVERY} steps in the background, until SIGKILL:")
    _show_what_is_left(console, root, step)
    resumed = read_output(start(root, AFTER, every=EVERY, steps=STEPS))
    restored = resumed.restored
    if restored.get("restored") != step - EVERY:
        raise SystemExit(f"expected to resume from step {step - EVERY}, found {restored}")
    console.print(
        f"Resumed on a 2x4 mesh from step {step - EVERY}, read in "
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
        stat = path.stat()
        how = ", linked" if stat.st_nlink > 1 else ""
        console.print(f"  run/{step}/{path.name}: {stat.st_size / 1e6:.1f} MB{how}")
    if INDEX in [path.name for path in files]:
        raise SystemExit(f"the save of step {step} had ended when it was killed")
    steps = cordwood.CheckpointManager(root).steps()
    console.print(f"  no {INDEX}: step {step} does not count. Complete steps: {steps}")
    if step in steps or steps[-1:] != [step - EVERY]:
        raise SystemExit(f"expected step {step - EVERY} to be the newest, found {steps}")


def _show_losses(console: Console, runs: Runs, step: int) -> None:
    columns = {
        "never stopped, 4x2": runs.whole.losses,
        "killed, 4x2": runs.killed.losses,
        "resumed, 2x4": runs.resumed.losses,
    }
    table = Table(title="Training loss, nats per character")
    table.add_column("step", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    shown = {0, step - EVERY, step - EVERY + 1, step, step + 1, STEPS - 1}
    for number in sorted(shown):
        row = [losses.get(number) for losses in columns.values()]
        texts = ["" if loss is None else f"{float.fromhex(loss):.9f}" for loss in row]
        table.add_row(str(number), *texts)
    console.print(table)
    for name, losses in columns.items():
        for number, loss in losses.items():
            if loss != runs.whole.losses[number]:
                raise SystemExit(f"{name}: the loss of step {number} differs")
    both = {**runs.killed.losses, **runs.resumed.losses}
    if sorted(both) != list(range(STEPS)):
        raise SystemExit("steps are missing")
    console.print(f"All {STEPS} losses equal those of the run that never stopped, bit for bit.")


def _require_same_end(console: Console, runs: Runs) -> None:
    last = STEPS - 1
    diff = cordwood.diff(runs.whole_root / str(last), runs.root / str(last))
    if not diff.equal:
        raise SystemExit(str(diff))
    console.print(f"The state after step {last} is equal too: {diff.equal_leaves} leaves.")
