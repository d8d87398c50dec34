"""The README's table of measurements, read from the pages that the benchmarks write.

python -m benchmarks.readme    writes the table into README.md
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks import in_turns
from benchmarks.pages import HERE, read_rows
from benchmarks.resume import (
    FLAX,
    ORBAX,
    OURS,
    OURS_DIRECTORY,
    OURS_MSGPACK,
    SAFETENSORS,
)

README = HERE.parent / "README.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


class Row(NamedTuple):
    """One row of the README's table: a peer's time divided by cordwood's.

    Attributes:
        task: the operation that is measured.
        peer: the library that cordwood is compared with.
        page: the file of the benchmark, in this folder.
        section: the heading in that file under which the ratio is listed.
        ratio: the name of the ratio in that section.
    """

    task: str
    peer: str
    page: str
    section: str
    ratio: str


def _in_turns(peer: str, ours: str) -> str:
    return f"load: {peer} / {ours}"


_ORBAX, _EFORMER = "orbax StandardCheckpointer", "eformer tree_serialize / tree_deserialize"
_FLAX_SAVE, _SAVE = "flax.to_bytes + write + fsync", "cordwood.save .safetensors, durable"
_PACKS = "cordwood packs"
_MANAGERS = "orbax CheckpointManager / cordwood.CheckpointManager"
_LOOP = "A loop with three saves"

ROWS = [
    *[
        Row(f"first load of a new process, {what}", peer, "resume.md", "cold", row)
        for what, peer, row in [
            ("`.safetensors`", "safetensors.flax", f"{SAFETENSORS} / {OURS}"),
            ("`.msgpack`", "flax", f"{FLAX} / {OURS_MSGPACK}"),
            ("a directory", "Orbax", f"{ORBAX} / {OURS_DIRECTORY}"),
        ]
    ],
    *[
        Row(f"repeated loads in one process, {what}", peer, "resume.md", "repeated", row)
        for what, peer, row in [
            ("`.safetensors`", "safetensors.flax", f"{SAFETENSORS} / {OURS}"),
            ("a directory", "Orbax", f"{ORBAX} / {OURS_DIRECTORY}"),
        ]
    ],
    *[
        Row(f"load after a save in one process, {what}", peer, "resume.md", "in turns", row)
        for what, peer, row in [
            ("`.safetensors`", "safetensors.flax", _in_turns(in_turns.SAFETENSORS, in_turns.OURS)),
            ("`.msgpack`", "flax", _in_turns(in_turns.FLAX, in_turns.OURS_MSGPACK)),
            ("a directory", "Orbax", _in_turns(in_turns.ORBAX, in_turns.OURS_DIRECTORY)),
        ]
    ],
    *[
        Row("save, 8 devices", peer, "directory.md", "gpt2-8-devices", f"save: {name} / {_PACKS}")
        for peer, name in [("Orbax", _ORBAX), ("eFormer", _EFORMER)]
    ],
    Row(
        "time that `save_async` blocks, 8 devices",
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
        "save one file, both flush it to the disk",
        "safetensors.flax + fsync",
        "single_file.md",
        "gpt2",
        f"safetensors.flax.save_file + fsync / {_SAVE}",
    ),
    Row(
        "save one file (cordwood flushes it to the disk, safetensors.flax does not)",
        "safetensors.flax",
        "single_file.md",
        "gpt2",
        f"safetensors.flax.save_file, no fsync / {_SAVE}",
    ),
    Row(
        "time that a manager adds to a training loop, 0.27 GB",
        "Orbax",
        "manager.md",
        _LOOP,
        f"overhead, loop: {_MANAGERS}",
    ),
    Row("restore the newest step, 0.27 GB", "Orbax", "manager.md", _LOOP, f"resume: {_MANAGERS}"),
]


def read_ratio(row: Row) -> float:
    """Return the ratio that a benchmark's page lists.

    Raises:
        KeyError: the page has no such section, or the section has no such ratio.
    """
    for cells in read_rows(row.page, row.section):
        if cells[0] == row.ratio:
            return float(cells[1].replace(",", ""))
    raise KeyError(f"{row.page}, {row.section}: no row {row.ratio!r}")


def times_text(ratio: float) -> str:
    """Return a ratio with one digit after the point, and with none from 10 on."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def make_table() -> str:
    """Return the table as Markdown."""
    lines = ["| task | compared with | times as fast | measured in |", "|---|---|---:|---|"]
    for row in ROWS:
        rounded = times_text(read_ratio(row))
        link = f"[{row.page}](benchmarks/{row.page})"
        lines.append(f"| {row.task} | {row.peer} | {rounded} | {link} |")
    return "\n".join(lines) + "\n"


def replace_table(readme: str) -> str:
    """Return the README's text with a table made from the pages as they are now."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + make_table() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(replace_table(README.read_text()))
