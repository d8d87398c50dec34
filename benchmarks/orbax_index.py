"""Saves with the index for Orbax, beside saves without it and beside Orbax's own.

    python benchmarks/orbax_index.py                          writes orbax_index.md
    python benchmarks/orbax_index.py --tree smoke --rounds 1  a tree of 2 MB; prints the page

With GPT-2, also a tree of 20,000 leaves of 1 KB. Every round runs every contender once, in a
different order, into a new path; Orbax is in every round of the large tree, and in separate rounds
for the small leaves, of which it needs half a minute for one save.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from benchmarks.one_tree import MakeTree

PACKAGES = ["cordwood", "orbax-checkpoint", "jax", "numpy"]
PLAIN = "cordwood.save"
INDEX = "cordwood.save, orbax=True"
ITEM = 'cordwood.save, orbax="state"'
ORBAX = "orbax StandardCheckpointer"
MAX_RATIO = 1.03  # of the tree of 1.49 GB: with the index / without it
MIN_TIMES = 3.0  # as fast as Orbax
MAX_SHARE = 0.001  # of the bytes that the index adds
_ORBAX_ROUNDS = 2  # of a tree with many leaves
_MANY = 10_000  # leaves
_HOW = """\
Written by `python benchmarks/orbax_index.py`. Each figure is the median of interleaved rounds; each
save writes a new path. cordwood's files are on the disk when a save returns; Orbax's can still be
lost at that moment. "added" is what a save has on the disk besides that of the first row, and
its files. Trust the ratios, not the absolute numbers."""


def contenders(tree: Any) -> dict[str, Callable[[Path], Any]]:
    """Return the timed calls by name. Each gets the path that it writes to."""
    import orbax.checkpoint as ocp

    import cordwood

    def save_orbax(path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, tree)

    return {
        PLAIN: lambda path: cordwood.save(path, tree),
        INDEX: lambda path: cordwood.save(path, tree, orbax=True),
        ITEM: lambda path: cordwood.save(path, tree, orbax="state"),
        ORBAX: save_orbax,
    }


def sizes_of(path: Path) -> tuple[int, int]:
    """Return the bytes of the files of a checkpoint, and the number of files and links."""
    files = [file for file in path.rglob("*") if not file.is_dir()]
    return sum([file.lstat().st_size for file in files]), len(files)


def measure(tree: Any, folder: Path, rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the median seconds of each contender, and the bytes and files that it writes."""
    import jax

    from benchmarks.rounds import median_seconds, remove, time_saves

    calls = contenders(tree)
    sizes = {}
    for name, call in calls.items():  # also the first save of each, which counts for none
        path = folder / "sizes"
        call(path)
        sizes[name] = sizes_of(path)
        remove(path)
    if len(jax.tree.leaves(tree)) < _MANY:
        return median_seconds(time_saves(calls, folder, rounds, suffix_of=lambda _: "")), sizes
    slow = {ORBAX: calls.pop(ORBAX)}
    times = time_saves(calls, folder, rounds, suffix_of=lambda _: "")
    times |= time_saves(slow, folder, _ORBAX_ROUNDS, suffix_of=lambda _: "")
    return median_seconds(times), sizes


def section(tree: Any, seconds: Mapping[str, float], sizes: Mapping[str, Any]) -> list[str]:
    """Return the lines of a tree."""
    import jax

    leaves = jax.tree.leaves(tree)
    size_bytes = sum([leaf.nbytes for leaf in leaves])
    lines = [
        f"## {len(leaves):,} leaves, {size_bytes / 1e9:.2f} GB",
        "",
        "| save | ms | relative to the first | added, kB | added files and links |",
        "|---|---:|---:|---:|---:|",
    ]
    plain_bytes, plain_files = sizes[PLAIN]
    for name, took in seconds.items():
        added = ["-", "-"]
        if name in (INDEX, ITEM):
            stored_bytes, stored_files = sizes[name]
            added = [f"{(stored_bytes - plain_bytes) / 1e3:,.0f}", str(stored_files - plain_files)]
        cells = [name, f"{1e3 * took:,.1f}", f"{took / seconds[PLAIN]:.2f}", *added]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| | measured | target | |", "|---|---:|---:|---|"]
    for name in (INDEX, ITEM):
        if len(leaves) < _MANY:
            share = (sizes[name][0] - plain_bytes) / size_bytes
            lines += [
                _claim(f"{name} / {PLAIN}", seconds[name] / seconds[PLAIN], MAX_RATIO),
                _claim(f"{name}: added / tree", share, MAX_SHARE, digits=5),
            ]
        lines.append(
            _claim(f"{ORBAX} / {name}", seconds[ORBAX] / seconds[name], MIN_TIMES, least=True)
        )
    return [*lines, ""]


def _claim(
    name: str, measured: float, target: float, *, least: bool = False, digits: int = 2
) -> str:
    is_met = measured >= target if least else measured <= target
    bound = "at least" if least else "at most"
    verdict = "met" if is_met else "**not met**"
    return f"| {name} | {measured:.{digits}f} | {bound} {target:g} | {verdict} |"


def measured_page(make_tree: MakeTree, folder: Path, rounds: int) -> str:
    from benchmarks.pages import hardware, page_head, versions_of
    from benchmarks.trees import gpt2_adam, small_leaves

    title = "Steps that Orbax reads too: what the index costs"
    lines = page_head(title, _HOW, versions_of(PACKAGES), hardware(folder))
    for make in [make_tree, small_leaves] if make_tree is gpt2_adam else [make_tree]:
        tree = make()
        lines += section(tree, *measure(tree, folder, rounds))
    return "\n".join(lines)


def main() -> None:
    from benchmarks.one_tree import write_page

    write_page(measured_page, description=__doc__ or "", output=HERE / "orbax_index.md")


if __name__ == "__main__":
    main()
