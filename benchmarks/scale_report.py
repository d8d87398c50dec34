"""The tables of benchmarks/scale.md."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.scale_model import DEVICES_PER_PROCESS, parameter_count
from benchmarks.scale_plans import Load, Save

__all__ = ["as_markdown", "unmet"]

PLAN_SECONDS_MAX = 5.0
IMBALANCE_MAX = 0.05
FILES_MAX = 16


def as_markdown(saves: Sequence[Save], loads: Sequence[Load], machine: str) -> str:
    """Return the page as Markdown."""
    largest = saves[-1]
    lines = [
        "# Scale on paper: 405 billion parameters, 1,024 processes",
        "",
        "Written by `python benchmarks/scale.py`. Nothing is stored. The same functions make",
        "the plans that real processes would make, over jax's own shardings of simulated",
        "devices.",
        "",
        f"- Llama 3's 405B shapes: {parameter_count():,} parameters in bfloat16, stored once, with",
        "  Adam's two moments in float32: ten bytes per parameter,",
        f"  {largest.state_bytes / 1e12:.2f} TB in {largest.leaves:,} leaves.",
        f"- {DEVICES_PER_PROCESS} devices per process. Matrices are cut over all processes (fully",
        "  sharded), and along the other axis over 8 devices (tensor parallel). Every device holds",
        "  the complete scales of the norms.",
        f"- {machine}; times of one process, one thread.",
        "",
        "## Save",
        "",
        *_header(
            "processes",
            "cells",
            "shards, s",
            "assignment, s",
            "own files, s",
            "GB per process",
            "above the mean",
            "files per process",
            "headers per process, MB",
        ),
    ]
    for save in saves:
        lines.append(
            f"| {save.processes:,} | {save.cells:,} | {save.shards_seconds:.2f} "
            f"| {save.layout_seconds:.2f} | {save.own_seconds:.2f} "
            f"| {save.fewest_bytes / 1e9:,.2f} to {save.most_bytes / 1e9:,.2f} "
            f"| {save.imbalance:.2%} | {save.most_files} | {save.header_bytes / 1e6:.1f} |"
        )
    lines += [
        "",
        "Every process plans from the shardings alone, because jax's shardings are global. So",
        "nothing is exchanged before writing. The time to ask jax which device holds which part",
        "grows with the devices. The rest is done once for each of the few ways in which leaves",
        "are cut, however many leaves there are. Small leaves that every process holds are",
        "assigned to the first process until it has 2 % more than the others: a reader needs",
        "all of them, and finds them in a few files.",
        "",
        "## Merge",
        "",
        *_header(
            "processes", "sent to process 0, KB", "merge, s", "index, KB", "index bytes per cell"
        ),
    ]
    for save in saves:
        sent_bytes = save.processes * save.most_files * 24  # a digest of 16 bytes, two sizes
        lines.append(
            f"| {save.processes:,} | {sent_bytes / 1e3:,.1f} | {save.merge_seconds:.2f} "
            f"| {save.index_bytes / 1e3:,.0f} | {save.index_bytes / save.cells:.2f} |"
        )
    lines += [
        "",
        "The index does not name single cells. It says how each kind of leaf is cut, and for",
        "each file which cells of which columns of leaves it holds. Processes that hold similar",
        "shards share the columns. So it grows with the files and the cells of one leaf, not with",
        f"the product of leaves and devices ({largest.cells:,} cells here). Process 0",
        "knows all of it before any process has written, except each header's size and digest.",
        "",
        "## Load",
        "",
        *_header(
            "saved by",
            "loaded by",
            "tensor parallel",
            "index checked, s",
            "requested boxes, s",
            "stored pieces, s",
            "plan, s",
            "sum, s",
            "GB requested",
            "read / requested",
            "ranges",
            "files",
        ),
    ]
    for load in loads:
        lines.append(
            f"| {load.saved:,} | {load.loading:,} | {load.tensor} | {load.parse_seconds:.2f} "
            f"| {load.boxes_seconds:.2f} | {load.pieces_seconds:.2f} | {load.plan_seconds:.2f} "
            f"| {load.seconds:.2f} | {load.wanted_bytes / 1e9:,.2f} "
            f"| {load.read_bytes / load.wanted_bytes:.3f} | {load.reads:,} | {load.files} |"
        )
    lines += [
        "",
        "`read / requested` counts whole digest blocks of 1 MiB. If a leaf is stored in",
        "thousands of cells, only those that overlap the requested boxes are examined. Leaves",
        "that are cut in the same way are planned once.",
        "",
        "| claim | measured | at most | |",
        "|---|---:|---:|---|",
        *_claims(saves, loads),
        "",
    ]
    return "\n".join(lines)


def _header(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---:|' * len(columns)}"]


def unmet(saves: Sequence[Save], loads: Sequence[Load]) -> list[str]:
    """Return the claims that the plans do not meet."""
    return [line for line in _claims(saves, loads) if "**not met**" in line]


def _claims(saves: Sequence[Save], loads: Sequence[Load]) -> list[str]:
    rows = [
        ("planning a save, s", max(s.plan_seconds for s in saves), PLAN_SECONDS_MAX, ".2f"),
        (
            "bytes above the mean of all processes",
            max(s.imbalance for s in saves),
            IMBALANCE_MAX,
            ".2%",
        ),
        ("files per process", max(s.most_files for s in saves), FILES_MAX, "d"),
    ]
    if loads:
        slowest = max(load.seconds for load in loads)
        rows.insert(1, ("planning a load, s", slowest, PLAN_SECONDS_MAX, ".2f"))
    return [
        f"| {what} | {value:{form}} | {most:{'.0%' if '%' in form else 'g'}} "
        f"| {'met' if value <= most else '**not met**'} |"
        for what, value, most, form in rows
    ]
