"""The README's table of measured ratios, taken from the pages that the benchmarks write.

python -m benchmarks.readme    writes it into README.md
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from benchmarks.resume import (
    FLAX,
    ORBAX,
    OURS,
    OURS_DIRECTORY,
    OURS_MSGPACK,
    SAFETENSORS,
)

__all__ = ["README", "ROWS", "table", "with_table"]

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


class Row(NamedTuple):
    """A ratio of a page: a peer's time for one of cordwood's."""

    doing: str
    beside: str
    page: str
    tree: str  # the section
    ratio: str  # the row


_ORBAX, _EFORMER = "orbax StandardCheckpointer", "eformer tree_serialize / tree_deserialize"
_FLAX_SAVE, _SAVE = "flax.to_bytes + write + fsync", "cordwood.save .safetensors, durable"
_PACKS = "cordwood packs"
_MANAGERS = "orbax CheckpointManager / cordwood.CheckpointManager"
_LOOP = "A loop with three saves"

ROWS = [
    *[
        Row(f"resume: the first load of a new process, {what}", peer, "resume.md", "cold", row)
        for what, peer, row in [
            ("`.safetensors`", "safetensors.flax", f"{SAFETENSORS} / {OURS}"),
            ("`.msgpack`", "flax", f"{FLAX} / {OURS_MSGPACK}"),
            ("a directory", "Orbax", f"{ORBAX} / {OURS_DIRECTORY}"),
        ]
    ],
    *[
        Row(f"load again and again in one process, {what}", peer, "resume.md", "repeated", row)
        for what, peer, row in [
            ("`.safetensors`", "safetensors.flax", f"{SAFETENSORS} / {OURS}"),
            ("a directory", "Orbax", f"{ORBAX} / {OURS_DIRECTORY}"),
        ]
    ],
    *[
        Row("save, 8 devices", peer, "directory.md", "gpt2-8-devices", f"save: {name} / {_PACKS}")
        for peer, name in [("Orbax", _ORBAX), ("eFormer", _EFORMER)]
    ],
    Row(
        "how long `save_async` blocks, 8 devices",
        "Orbax",
        "directory.md",
        "gpt2-8-devices",
        f"blocking: {_ORBAX}, call / cordwood.save_async",
    ),
    Row(
        "save, 1,000 tiny leaves",
        "Orbax",
        "directory.md",
        "tiny",
        f"save: {_ORBAX} / {_PACKS}",
    ),
    Row(
        "save one file",
        "flax",
        "single_file.md",
        "gpt2",
        f"{_FLAX_SAVE} / cordwood.save .msgpack, durable",
    ),
    Row(
        "save one file, where safetensors does not flush",
        "safetensors.flax",
        "single_file.md",
        "gpt2",
        f"safetensors.flax.save_file, no fsync / {_SAVE}",
    ),
    Row(
        "what `CheckpointManager` costs a training loop, 0.27 GB",
        "Orbax",
        "manager.md",
        _LOOP,
        f"overhead, loop: {_MANAGERS}",
    ),
    Row("restore the newest step, 0.27 GB", "Orbax", "manager.md", _LOOP, f"resume: {_MANAGERS}"),
]


def found(page: str, tree: str, ratio: str) -> float:
    """What a page says; KeyError: it does not."""
    section = f"\n## {tree}\n"
    text = (HERE / page).read_text()
    if section not in text:
        raise KeyError(f"{page} has no section {tree}")
    for line in text.split(section)[1].split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == ratio:
            return float(cells[1].replace(",", ""))
    raise KeyError(f"{page}, {tree}: no row {ratio!r}")


def table() -> str:
    """Markdown."""
    lines = ["| | beside | times as fast | |", "|---|---|---:|---|"]
    for row in ROWS:
        value = found(row.page, row.tree, row.ratio)
        shown = f"{value:.0f}" if value >= 10 else f"{value:.1f}"
        lines.append(
            f"| {row.doing} | {row.beside} | {shown} | [{row.page}](benchmarks/{row.page}) |"
        )
    return "\n".join(lines) + "\n"


def with_table(readme: str) -> str:
    """The README with the table as the pages are now."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
