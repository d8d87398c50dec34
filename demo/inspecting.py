"""Uses of the steps of a run, with their costs: one device, verify, diff, other formats."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import safetensors.numpy
from rich.console import Console
from rich.table import Table

import cordwood
from cordwood.results import Diff
from demo.children import require_links
from demo.resuming import Runs
from demo.transformer import held_out_loss, new_run, text_as_codes
from demo.weights import flat, same_bits

__all__ = ["show_steps"]

PARAMS, FROZEN = "state/params", "frozen/trigrams"


@dataclass(slots=True)
class Cost:
    """The time of an operation. Its size is set when it is known."""

    what: str
    seconds: float = 0.0
    size_bytes: int = 0


@contextmanager
def timed(costs: list[Cost], what: str) -> Iterator[Cost]:
    """Time a block, and add a row at its end."""
    cost = Cost(what)
    start = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - start
    costs.append(cost)


def show_steps(console: Console, folder: Path, runs: Runs) -> None:
    console.rule("Its steps: one device, verify, diff, other formats")
    costs: list[Cost] = []
    manager = cordwood.CheckpointManager(runs.root)
    *_, before, last = manager.steps()
    like = new_run()
    with timed(costs, f"restore step {last} onto one device") as cost:
        restored = manager.restore(last, like=like)
        jax.block_until_ready(restored.tree)
    cost.size_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(restored.tree))
    _require_one_device(console, restored.tree, runs)
    for step in manager.steps():
        with timed(costs, f"verify step {step}") as cost:
            checked = cordwood.verify(runs.root / str(step))
        cost.size_bytes = checked.verified_bytes
        if checked.unverified_bytes:
            raise SystemExit(f"step {step}: {checked.unverified_bytes} bytes have no digest")
    console.print(f"Steps {manager.steps()} verify: every byte is unchanged.")
    with timed(costs, f"diff steps {before} and {last}") as cost:
        diff = cordwood.diff(runs.root / str(before), runs.root / str(last))
    cost.size_bytes = diff.read_bytes
    _show_diff(console, diff)
    tensors, flax_file = folder / "params.safetensors", folder / "params.msgpack"
    for path in (tensors, flax_file):
        source = runs.root / str(last)
        with timed(costs, f"convert to {path.name}") as cost:
            cordwood.convert(  # without the manager's record: Flax's format has no place for it
                source, path, select=f"{PARAMS}/**", rename={PARAMS: "params"}, metadata={}
            )
        cost.size_bytes = path.stat().st_size
    _require_readable(console, tensors, flax_file, restored.tree["state"].params)
    console.print(_table_of_saves(runs))
    require_links(runs.killed)
    require_links(runs.resumed)
    used, state = _disk_bytes(runs.root), costs[0].size_bytes
    console.print(
        f"Steps {manager.steps()} take {used / 1e6:.1f} MB on disk; "
        f"{len(manager.steps())} times the state are {len(manager.steps()) * state / 1e6:.1f} MB."
    )
    console.print(_table_of_costs(runs, costs))


def _require_one_device(console: Console, tree: Any, runs: Runs) -> None:
    if {len(leaf.devices()) for leaf in jax.tree.leaves(tree)} != {1}:
        raise SystemExit("a leaf is on more than one device")
    last = max(runs.resumed.losses)
    diff = cordwood.diff(runs.whole_root / str(last), tree)
    if not diff.equal:
        raise SystemExit(str(diff))
    loss, expected = float(held_out_loss(tree, text_as_codes())), runs.whole.end["held_out"]
    if abs(loss - expected) > 1e-5:
        raise SystemExit(f"held-out loss: expected {expected}, found {loss}")
    console.print(
        f"On one device: the same {diff.equal_leaves} leaves, bit for bit; held-out loss "
        f"{loss:.6f}\n(on eight {expected:.6f}: they add in another order)."
    )


def _show_diff(console: Console, diff: Diff) -> None:
    console.print(
        f"diff: {len(diff.leaves)} leaves differ, {diff.equal_leaves} are equal, of which "
        f"{diff.equal_by_digest} by digest, unread. Three of those that differ:"
    )
    for leaf in sorted(diff.leaves, key=lambda leaf: -leaf.size)[:3]:
        console.print(
            f"  {leaf.key_path}: {leaf.differing:,} of {leaf.size:,} differ, "
            f"by at most {leaf.max_abs:.2g}"
        )
    if not diff.leaves or FROZEN in [leaf.key_path for leaf in diff.leaves]:
        raise SystemExit(f"expected weights that changed and a table that did not: {diff}")


def _require_readable(console: Console, tensors: Path, flax_file: Path, params: Any) -> None:
    expected = flat({"params": params})
    read = {
        "safetensors": (tensors, safetensors.numpy.load_file(tensors)),
        "Flax": (flax_file, flat(flax.serialization.msgpack_restore(flax_file.read_bytes()))),
    }
    for reader, (path, tensors_read) in read.items():
        equal = sum(same_bits(tensors_read.get(name), expected[name]) for name in expected)
        if equal != len(expected) or len(tensors_read) != len(expected):
            raise SystemExit(f"{reader} reads {path.name} differently")
        console.print(f"{path.name}: {equal} of {len(expected)} tensors are equal for {reader}")


def _table_of_saves(runs: Runs) -> Table:
    table = Table(title="Saves in the background, while training went on")
    table.add_column("step", justify="right")
    table.add_column("mesh")
    for name in ("written, MB", "linked, MB", "the loop waits, ms", "total, ms"):
        table.add_column(name, justify="right")
    for mesh, output in (("4x2", runs.killed), ("2x4", runs.resumed)):
        for save in output.saves:
            sizes = [f"{save[name] / 1e6:.1f}" for name in ("written_bytes", "linked_bytes")]
            times = [f"{1e3 * save[f'{name}_seconds']:,.0f}" for name in ("blocking", "total")]
            table.add_row(str(save["step"]), mesh, *sizes, *times)
    return table


def _disk_bytes(root: Path) -> int:
    """Return the size of all steps on disk; a file with several names counts once."""
    stats = [path.stat() for path in root.rglob("*")]
    return sum({each.st_ino: 512 * each.st_blocks for each in stats}.values())


def _table_of_costs(runs: Runs, costs: list[Cost]) -> Table:
    restored = runs.resumed.restored
    what = f"restore step {restored['restored']} onto the 2x4 mesh"
    first = Cost(what, restored["seconds"], costs[0].size_bytes)
    table = Table(title="Other operations")
    table.add_column("")
    table.add_column("MB", justify="right")
    table.add_column("ms", justify="right")
    for cost in [first, *costs]:
        table.add_row(cost.what, f"{cost.size_bytes / 1e6:.1f}", f"{1e3 * cost.seconds:,.0f}")
    return table
