"""The page benchmarks/soak.md: one section for each part of `make soak`, from its last run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import jax

SOAK = os.environ.get("CORDWOOD_SOAK", "")  # the page's path; "": the short runs of `make test`

SECTIONS = (
    "Single saves",
    "A training run",
    "A run of two processes",
    "Jobs with a root for each process",
    "Failures of one process",
    "Two managers of one root",
    "Turns of cordwood and Orbax",
    "An object store",
    "Copies of arrays on accelerators",
    "A full disk",
    "Power cuts",
    "Signal handlers",
    "Bulk work",
    "Every crash state of every call",
)
_HEAD = (
    "# Soak: what `make soak` found\n\n"
    "Written by that run. A kill is SIGKILL. Another process then checks the checkpoints.\n"
)


def as_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def write_section(title: str, text: str) -> None:
    """Replace a section of the page. Do nothing if no page is to be written."""
    if not SOAK:
        return
    path = Path(SOAK)
    old = path.read_text() if path.exists() else ""
    parts = dict(part.split("\n", 1) for part in old.split("\n## ")[1:])
    parts[title] = f"\n{text.strip()}\n\njax {jax.__version__}, {_cores()} cores.\n"
    names = [name for name in SECTIONS if name in parts]
    path.write_text(_HEAD + "".join(f"\n## {name}\n{parts[name].rstrip()}\n" for name in names))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
