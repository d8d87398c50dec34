"""The tables that benchmarks/scale.md holds."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.scale_model import DEVICES_PER_PROCESS, parameter_count
from benchmarks.scale_plans import Load, Save

__all__ = ["as_markdown", "unmet"]

PLAN_SECONDS_MAX = 5.0
IMBALANCE_MAX = 0.05
FILES_MAX = 16


def as_markdown(saves: Sequence[Save], loads: Sequence[Load], machine: str) -> str:
    """All of it as one page."""
    largest = saves[-1]
    lines = [
        "# Scale on paper: 405 billion parameters, 1,024 processes",
        "",
        "Written by `python benchmarks/scale.py`. Nothing is stored: the plans that real processes",
        "would make are made, by the same functions, over jax's own shardings of stand-in devices.",
        "",
        f"- Llama 3's 405B shapes: {parameter_count():,} parameters in bfloat16, stored once, with",
        "  Adam's two moments in float32: ten bytes a parameter,",
        f"  {largest.state_bytes / 1e12:.2f} TB in {largest.leaves:,} leaves.",
        f"- {DEVICES_PER_PROCESS} devices a process; matrices cut over all processes (fully",
        "  sharded) and along the other axis over 8 devices (tensor parallel); the scales of the",
        "  norms are whole on every device.",
        f"- {machine}; times of one process, one thread.",
        "",
        "## Save",
        "",
        *_header(
            "processes",
            "cells",
            "shards, s",
            "who writes what, s",
            "own files, s",
            "GB a process",
            "over the mean",
            "files a process",
            "headers a process, MB",
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
        "Every process plans from the shardings alone, which jax keeps global, so nothing is",
        "exchanged before writing. Asking jax who holds what grows with the devices; the rest is",
        "done once for each of the few ways in which leaves are cut, however many there are. Small",
        "leaves that every process holds go to the first process until it has 2 % more than the",
        "others: a reader needs all of them, and finds them in a few files.",
        "",
        "## Merge",
        "",
        *_header(
            "processes", "told to process 0, KB", "merge, s", "index, KB", "bytes of index a cell"
        ),
    ]
    for save in saves:
        told = save.processes * save.most_files * 24  # a digest of 16 bytes, two sizes
        lines.append(
            f"| {save.processes:,} | {told / 1e3:,.1f} | {save.merge_seconds:.2f} "
            f"| {save.index_bytes / 1e3:,.0f} | {save.index_bytes / save.cells:.2f} |"
        )
    lines += [
        "",
        "The index names no cell: it says how each kind of leaf is cut, and for each file which",
        "columns of leaves it holds of which cells. Processes that hold like shards share the",
        "columns. So it grows with the files and the cells of one leaf, and not with the product",
        f"of leaves and devices ({largest.cells:,} cells here). Process 0 knows all of it before",
        "anyone has written, but for the size and digest of each header.",
        "",
        "## Load",
        "",
        *_header(
            "saved by",
            "loaded by",
            "tensor parallel",
            "index checked, s",
            "wanted, s",
            "where it lies, s",
            "plan, s",
            "sum, s",
            "GB wanted",
            "read of wanted",
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
        "`read of wanted` counts whole digest blocks of 1 MiB. Where a leaf lies in thousands of",
        "cells, only those that meet what a process wants are looked at; leaves that are cut alike",
        "are thought through once.",
        "",
        "| claim | found | at most | |",
        "|---|---:|---:|---|",
        *_claims(saves, loads),
        "",
    ]
    return "\n".join(lines)


def _header(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---:|' * len(columns)}"]


def unmet(saves: Sequence[Save], loads: Sequence[Load]) -> list[str]:
    """The claims that the plans do not bear out."""
    return [line for line in _claims(saves, loads) if "**not met**" in line]


def _claims(saves: Sequence[Save], loads: Sequence[Load]) -> list[str]:
    rows = [
        ("planning a save, s", max(s.plan_seconds for s in saves), PLAN_SECONDS_MAX, ".2f"),
        (
            "bytes over the mean of all processes",
            max(s.imbalance for s in saves),
            IMBALANCE_MAX,
            ".2%",
        ),
        ("files a process", max(s.most_files for s in saves), FILES_MAX, "d"),
    ]
    if loads:
        slowest = max(load.seconds for load in loads)
        rows.insert(1, ("planning a load, s", slowest, PLAN_SECONDS_MAX, ".2f"))
    return [
        f"| {what} | {found:{form}} | {most:{'.0%' if '%' in form else 'g'}} "
        f"| {'met' if found <= most else '**not met**'} |"
        for what, found, most, form in rows
    ]
