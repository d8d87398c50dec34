"""The commands that list: `ls` the leaves of a checkpoint, `info` a summary, `steps` a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cordwood.cli.arguments import PATH, SOURCE, detected_run, format_option, prefix_option
from cordwood.cli.complete_key import complete_key
from cordwood.cli.list_leaves import LeafListing, LeafRow, group_rows, list_leaves, select_rows
from cordwood.cli.output import (
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
    time_text,
    to_json_value,
)
from cordwood.errors import CordwoodError
from cordwood.formats.step_record import KEY, ORBAX_KEY, decode_record
from cordwood.formats.version_record import KEY as VERSION_KEY
from cordwood.formats.version_record import version_in
from cordwood.message_text import counted, printable, size_text
from cordwood.storage.locations import Location
from cordwood.threads.garbage_collector import gc_paused

if TYPE_CHECKING:
    from cordwood.manager.step_summaries import StepSummary

LS_EXAMPLES = """
\b
Examples:
  cordwood ls run/100                    every leaf: key path, dtype and shape, size
  cordwood ls run/100 --depth 1          one line for each key of the first level
  cordwood ls run/100 'params/**/bias'   the leaves that match a pattern
  cordwood ls run/100 --sort size        the largest first
"""

INFO_EXAMPLES = """
\b
Examples:
  cordwood info run/100
  cordwood info model.safetensors --json
"""

STEPS_EXAMPLES = """
\b
Examples:
  cordwood steps run
  cordwood steps run --json
"""

_MOST_CHARACTERS = 200  # of a text beside the tree
_STEP_TITLES = ("step", "format", "size", "saved", "metrics", "note")


@click.command("ls", epilog=LS_EXAMPLES, short_help="List the leaves of a checkpoint.")
@click.argument("path", type=SOURCE)
@click.argument("patterns", nargs=-1, shell_complete=complete_key)
@click.option("--depth", type=click.IntRange(1), help="Sum up leaves with more keys than this.")
@click.option(
    "--sort", type=click.Choice(["tree", "name", "size"]), default="tree", help="The order."
)
@prefix_option
@format_option
@json_option
@gc_paused()  # the collector would traverse all rows several times
def ls_command(
    path: str,
    patterns: Sequence[str],
    depth: int | None,
    sort: str,
    prefix: str | None,
    format: str | None,
    as_json: bool,
) -> None:
    """List the leaves of the checkpoint at PATH.

    Print the key path of each leaf, its dtype and shape, its size in memory, and how it is
    partitioned, if the index records that: the number of stored parts in total and along each axis,
    or the sharding that Orbax recorded. A list that fits the terminal is printed as a table,
    everything else as plain rows.

    PATTERNS select key paths: * matches any part of a key, ** any number of keys, and a pattern
    that matches a container selects all leaves in it.
    """
    listing = list_leaves(path, prefix=prefix, format=format)
    rows: Sequence[LeafRow] = listing.rows
    if patterns:
        rows = select_rows(rows, patterns, where=path)
    count, size = len(rows), sum([row.size_bytes for row in rows])
    if depth is not None:
        rows = group_rows(rows, depth, listing.separator)
    if sort == "size":
        rows = sorted(rows, key=lambda row: -row.size_bytes)
    elif sort == "name":
        rows = sorted(rows, key=lambda row: row.key_path)
    if as_json:
        leaves = [row._asdict() for row in rows]
        print_json({"path": path, "format": listing.format, "size_bytes": size, "leaves": leaves})
        return
    lines = [
        [
            row.key_path or "(the root)",
            row.what,
            size_text(row.size_bytes) if row.size_bytes or row.leaves else "",
            _partition(row) if row.parts > 1 or row.sharding else "",
        ]
        for row in rows
    ]
    total = f"{counted(count, 'leaf', 'leaves')}, {size_text(size)}, {listing.format}"
    if not print_table(("leaf", "type", "size", "parts, sharding"), lines, total, right=[2]):
        print_text("\n".join(filter(None, [columns(fitted(lines), right=[2]), total])))


def _partition(row: LeafRow) -> str:
    """Return how an array is partitioned: "in 8 parts, 4x2", or the recorded sharding."""
    parts = f"in {row.parts} parts" if row.parts > 1 else ""
    return ", ".join(filter(None, [parts, row.sharding or "x".join(map(str, row.cuts))]))


@click.command(
    "info", epilog=INFO_EXAMPLES, short_help="Summarize a checkpoint: format, sizes, dtypes."
)
@click.argument("path", type=SOURCE)
@prefix_option
@format_option
@json_option
def info_command(path: str, prefix: str | None, format: str | None, as_json: bool) -> None:
    """Summarize the checkpoint at PATH: format, leaves, sizes, dtypes and metadata.

    If the directory holds several trees, list each of them; --prefix prints more about one.
    """
    from cordwood.formats.stored_trees import stored_trees
    from cordwood.storage.locations import parse_location

    location = parse_location(path)
    trees: Sequence[str] = [prefix or ""]
    items: Mapping[str, str] = {}
    if prefix is None:
        _, trees, items = stored_trees(location, format=format)
    named = [tree for tree in trees if tree] if len(trees) > 1 else []
    listings = {tree: list_leaves(path, prefix=tree) for tree in named}
    summary: dict[str, Any] = {"path": path}
    if trees == named:
        summary["format"] = listings[named[0]].format
    else:
        summary |= _summary(list_leaves(path, prefix=prefix, format=format))
    summary["disk_bytes"] = _stored_bytes(location, trees)
    if named:
        summary["trees"] = [{"prefix": tree, **_sizes(listings[tree].rows)} for tree in named]
    if items:
        summary["items"] = items
    if as_json:
        print_json(summary)
        return
    text = f"{path}\n{columns(_summary_rows(summary))}"
    if named:
        text += f"\nfor more about one tree: cordwood info {shlex.quote(path)} --prefix "
        text += shlex.quote(named[0])
    print_text(text)


def _stored_bytes(location: Location, trees: Sequence[str]) -> int:
    """Return the size of the files at a path; at a URL, of the objects that its index names."""
    from cordwood.loading.checkpoint import open_at
    from cordwood.storage.directories import size_on_disk
    from cordwood.storage.locations import LocalPath

    if isinstance(location, LocalPath):
        return size_on_disk(location)
    sizes: dict[str, int] = {}
    for tree in trees:
        with open_at(location, prefix=tree or None) as checkpoint:
            sizes.update({each.name: each.size_bytes for each in checkpoint.index.sources})
    return sum(sizes.values())


def _sizes(rows: Sequence[LeafRow]) -> dict[str, int]:
    return {"leaves": len(rows), "size_bytes": sum([row.size_bytes for row in rows])}


def _summary(listing: LeafListing) -> dict[str, Any]:
    """Summarize one tree, for JSON."""
    dtypes: dict[str, list[LeafRow]] = {}
    for row in listing.rows:
        dtypes.setdefault(row.what.partition("[")[0], []).append(row)
    return {
        "format": listing.format,
        **_sizes(listing.rows),
        "disk_bytes": None,
        "dtypes": {name: _sizes(rows) for name, rows in dtypes.items()},
        "metadata": dict(listing.metadata),
    }


def _summary_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Return the summary of a checkpoint as rows of two cells."""
    rows = [["format", summary["format"]]]
    if "leaves" in summary:
        rows.append(["leaves", str(summary["leaves"])])
        rows.append(["in memory", size_text(summary["size_bytes"])])
    disk = summary["disk_bytes"]
    rows.append(["on disk", "-" if disk is None else size_text(disk)])
    dtypes = summary.get("dtypes", {})
    for name, sizes in sorted(dtypes.items(), key=lambda item: -item[1]["size_bytes"]):
        rows.append([name, _sizes_text(sizes)])
    for name, text in summary.get("metadata", {}).items():
        record = _record_rows(text) if name == KEY else []
        if name == ORBAX_KEY:
            record = [["for Orbax too", f"item {text}" if text else "yes"]]
        if name == VERSION_KEY:
            record = _version_rows(text)
        rows += record or [[f"metadata {name}", _beginning_of(text)]]
    rows += [[f"tree {tree['prefix']}", _sizes_text(tree)] for tree in summary.get("trees", [])]
    rows += [[f"item {name}", kind] for name, kind in summary.get("items", {}).items()]
    return [[printable(cell, keep="") for cell in row] for row in rows]


def _record_rows(text: str) -> list[list[str]]:
    """Return the record of a step as rows of two cells; [] if it cannot be read."""
    try:
        record = decode_record(text, KEY)
    except CordwoodError:
        return []
    rows = [["step", str(record.step)], ["saved", time_text(record.time) or "-"]]
    if record.metrics:
        rows.append(["metrics", _metrics_text(record.metrics)])
    if record.extras is not None:
        rows.append(["extras", _beginning_of(json.dumps(record.extras, ensure_ascii=False))])
    if record.items:
        rows.append(["items", ", ".join(record.items)])
    return rows


def _version_rows(text: str) -> list[list[str]]:
    """Return the record of a version as rows of two cells; [] if it cannot be read."""
    try:
        record = version_in({VERSION_KEY: text}, VERSION_KEY)
    except CordwoodError:
        return []
    if record is None or record.base is None:
        return []
    step = record.base.step
    base = "another checkpoint" if step is None else f"version {step}"
    leaves = "the tree; a delta is beside it" if record.is_whole else "the changes, not the tree"
    return [["delta of", base], ["holds", leaves]]


def _beginning_of(text: str) -> str:
    """Return a text, or its beginning and an ellipsis; --json has all of it."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _metrics_text(metrics: Mapping[str, float]) -> str:
    return ", ".join([f"{name}={value:.6g}" for name, value in metrics.items()])


def _sizes_text(sizes: Mapping[str, Any]) -> str:
    return f"{counted(sizes['leaves'], 'leaf', 'leaves')}, {size_text(sizes['size_bytes'])}"


@click.command("steps", epilog=STEPS_EXAMPLES, short_help="List the steps of a run.")
@click.argument("path", type=PATH)
@json_option
def steps_command(path: str, as_json: bool) -> None:
    """List the steps in the directory PATH, oldest first.

    Print the format, size, time and metrics of each step, whether a job has pinned it, and, where a
    CheckpointManager does not restore or delete it, why not. The steps that a policy will keep are
    known to the job only: call `manager.plan()` there. The time is the start of the save. For a
    step that no manager saved, it is the last modification.

    A step is complete if its index is; `cordwood verify` reads the rest. Exit with 1 if the newest
    step is not complete.
    """
    from cordwood.manager.step_summaries import summarize_steps
    from cordwood.storage.locations import parse_location

    steps = summarize_steps(parse_location(path), detected_run(path).steps)
    rows = [_step_row(step) for step in steps]
    if as_json:
        print_json({"path": path, "steps": [_step_json(step) for step in steps]})
    elif not print_table(_STEP_TITLES, rows, counted(len(steps), "step"), right=[2]):
        filled = [i for i, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
        print_text(columns(fitted([[row[i] for i in filled] for row in rows]), right=[2]))
    if steps and steps[-1].problem:
        raise click.exceptions.Exit(1)


def _step_json(step: StepSummary) -> dict[str, Any]:
    metrics = {name: to_json_value(value) for name, value in step.metrics.items()}
    members = {name: value for name, value in step._asdict().items() if name != "state"}
    return {**members, "time": time_text(step.time, utc=True), "metrics": metrics}


def _step_row(step: StepSummary) -> list[str]:
    notes = ["pinned"] if step.pinned else []
    notes += filter(None, [step.problem.partition(";")[0], step.note])
    cells = [
        step.name,
        step.format or "incomplete",
        "-" if step.disk_bytes is None else size_text(step.disk_bytes),
        time_text(step.time) or "",
        _metrics_text(step.metrics),
        "; ".join(notes),
    ]
    return [printable(cell, keep="") for cell in cells]
