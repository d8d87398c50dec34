"""The weights of all-MiniLM-L6-v2, saved in two formats, read back by the peers, and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import safetensors.numpy
from rich.console import Console
from rich.table import Table

import cordwood
from benchmarks.bare import page_aligned_copy
from benchmarks.contenders import (
    BARE_READ,
    BARE_WRITE,
    Job,
    loads,
    prepare,
    saves,
    suffix_of,
    warm_up,
)
from benchmarks.rounds import median_seconds, time_saves, time_values
from benchmarks.trees import minilm, minilm_path

__all__ = ["flat", "same_bits", "show_weights"]

ROUNDS = 5


def show_weights(console: Console, folder: Path) -> None:
    source = minilm_path()
    console.rule("Real weights: all-MiniLM-L6-v2")
    names = cordwood.load(source, to="numpy")
    tree = cordwood.load(source, to="numpy", nest=True)
    size_bytes = sum(leaf.nbytes for leaf in names.values())
    console.print(
        f"Loaded {len(names)} leaves, {size_bytes / 1e6:.1f} MB, from the package's "
        f"{source.name}; saving them as .msgpack and as .safetensors."
    )
    flax_file, tensors_file = folder / "minilm.msgpack", folder / "minilm.safetensors"
    cordwood.save(flax_file, tree)
    cordwood.save(tensors_file, names)

    table = Table(title="Read back and compared, bit for bit")
    table.add_column("file")
    table.add_column("read by")
    table.add_column("equal leaves", justify="right")
    readers = [
        (tensors_file, "cordwood, digests checked", lambda: cordwood.load(tensors_file)),
        (tensors_file, "safetensors", lambda: safetensors.numpy.load_file(tensors_file)),
        (flax_file, "cordwood", lambda: flat(cordwood.load(flax_file, like=tree))),
        (flax_file, "Flax", lambda: flat(_read_with_flax(flax_file))),
    ]
    for path, reader, read in readers:
        leaves = read()
        equal = sum(same_bits(names[name], leaves[name]) for name in names)
        table.add_row(path.name, reader, f"{equal} of {len(names)}")
        if equal != len(names) or len(leaves) != len(names):
            raise SystemExit(f"{reader} reads {path.name} differently")
    console.print(table)
    checked = cordwood.verify(tensors_file)
    console.print(f"cordwood.verify: {checked.verified_bytes:,} bytes are unchanged.")
    _show_times(console, folder)


def same_bits(first: Any, second: Any) -> bool:
    """Return True if two arrays have equal shape, dtype and bytes, NaN and signed zeros too."""
    a, b = np.asarray(first), np.asarray(second)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def flat(tree: Any) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def _read_with_flax(path: Path) -> Any:
    return flax.serialization.msgpack_restore(path.read_bytes())


def _show_times(console: Console, folder: Path) -> None:
    warm_up(folder)
    job = Job(minilm(), folder)
    prepare(job)
    ours = page_aligned_copy(job.ours)
    save_times = time_saves(saves(job, ours), folder, ROUNDS, suffix_of=suffix_of)
    prepare(job)
    load_times = time_values(loads(job), ROUNDS)
    for title, times, bare in (
        ("Saving to a fresh path", save_times, BARE_WRITE),
        ("Loading from the page cache", load_times, BARE_READ),
    ):
        table = Table(title=f"{title}: medians of {ROUNDS} interleaved rounds")
        table.add_column("by")
        table.add_column("ms", justify="right")
        table.add_column("GB/s", justify="right")
        for name, seconds in sorted(median_seconds(times).items(), key=lambda item: item[1]):
            style = "bold" if name.startswith("cordwood") else "dim" if name == bare else ""
            rate = job.size_bytes / seconds / 1e9
            table.add_row(name, f"{1e3 * seconds:,.1f}", f"{rate:.2f}", style=style)
        console.print(table)
