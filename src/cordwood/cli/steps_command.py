"""The command `cordwood steps`: list the checkpoints of a run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from cordwood.cli.output import (
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
    to_json_value,
)
from cordwood.cli.path_arguments import PATH
from cordwood.errors import counted
from cordwood.message_text import printable, size_text

EXAMPLES = """
\b
Examples:
  cordwood steps run
  cordwood steps run --json
"""

_NO_STEP = "CheckpointManager does not restore it: it reads the names 100, checkpoint_100, run-100"
_TITLES = ("step", "format", "size", "saved", "metrics", "note")


class _Step(NamedTuple):
    """A checkpoint in the directory, with the field names of the JSON output."""

    step: int | None
    name: str
    format: str
    disk_bytes: int | None  # None for a URL
    time: float | None  # start of its save, or else last modification; seconds since 1970
    metrics: Mapping[str, float]
    pinned: bool
    problem: str  # why it is incomplete or damaged; "" if it is not
    note: str  # why CheckpointManager does not restore or delete this complete step, or ""


@click.command("steps", epilog=EXAMPLES, short_help="List the steps of a run.")
@click.argument("path", type=PATH)
@json_option
def command(path: str, as_json: bool) -> None:
    """List the steps in the directory PATH, oldest first.

    Print the format, size, time and metrics of each step, whether a job has pinned it, and, where a
    CheckpointManager does not restore or delete it, why not. The steps that a policy will keep are
    known to the job only: call `manager.plan()` there. The time is the start of the save. For a
    step that no manager saved, it is the last modification.

    A step is complete if its index is; `cordwood verify` reads the rest. Exit with 1 if the newest
    step is not complete.
    """
    from cordwood.api.detect import detect

    detected = detect(path)
    if detected.format != "steps":
        raise click.UsageError(f"{path} is {detected.description}, not a directory of steps")
    steps = _steps(path, detected.steps)
    if as_json:
        print_json({"path": path, "steps": [_as_json(step) for step in steps]})
    else:
        _print(steps)
    if steps and steps[-1].problem:
        raise click.exceptions.Exit(1)


def _steps(path: str, names: tuple[str, ...]) -> list[_Step]:
    from cordwood.api.detect import detect
    from cordwood.errors import CordwoodError
    from cordwood.formats.packs.file_names import RULES
    from cordwood.formats.step_directories import step_number
    from cordwood.manager.step_listing import StepListing
    from cordwood.storage.disk_usage import modified_seconds, size_on_disk
    from cordwood.storage.step_storage import open_step_storage
    from cordwood.storage.urls import parse_url

    storage = open_step_storage(path, RULES.index_name)
    entries = {each.entry: each for each in StepListing(storage).entries(start=0) if each.finished}
    steps = []
    for name in names:
        child = f"{path.rstrip('/')}/{name}"
        disk_bytes = None if parse_url(path) is not None else size_on_disk(child)
        step = _Step(
            step_number(name),
            name,
            "",
            disk_bytes,
            modified_seconds(child),
            {},
            False,
            "",
            _NO_STEP,
        )
        entry = entries.get(name)
        if entry is not None:
            saved = entry.saved if entry.counts else entry.foreign_metrics
            is_exempt = not entry.counts and not entry.damaged
            step = step._replace(
                step=entry.step,
                pinned=storage.in_use(name),
                problem=entry.problem if entry.damaged else "",
                note=f"{entry.problem}: no policy deletes it" if is_exempt else "",
            )
            if saved is not None:
                step = step._replace(time=saved.time or step.time, metrics=dict(saved.metrics))
        try:
            step = step._replace(format=detect(child).format)
        except (CordwoodError, OSError) as e:
            step = step._replace(problem=step.problem or str(e), note="")
        steps.append(step)
    return steps


def _as_json(step: _Step) -> dict[str, Any]:
    metrics = {name: to_json_value(value) for name, value in step.metrics.items()}
    return {**step._asdict(), "time": _time(step.time, utc=True), "metrics": metrics}


def _time(seconds: float | None, *, utc: bool = False) -> str | None:
    """Return a time as local time to read, or as UTC in ISO 8601; None if it is unknown."""
    if seconds is None:
        return None
    try:
        time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return f"{time:%Y-%m-%dT%H:%M:%SZ}" if utc else f"{time.astimezone():%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # a step record may contain any number
        return None


def _print(steps: list[_Step]) -> None:
    rows = [_row(step) for step in steps]
    caption = counted(len(steps), "step")
    if print_table(_TITLES, rows, caption, right=[2]):
        return
    kept = [i for i, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    print_text(columns(fitted([[row[i] for i in kept] for row in rows]), right=[2]))


def _row(step: _Step) -> list[str]:
    metrics = [f"{name}={value:.6g}" for name, value in step.metrics.items()]
    notes = ["pinned"] if step.pinned else []
    notes += filter(None, [step.problem.partition(";")[0], step.note])
    cells = [
        step.name,
        step.format or "incomplete",
        "-" if step.disk_bytes is None else size_text(step.disk_bytes),
        _time(step.time) or "",
        ", ".join(metrics),
        "; ".join(notes),
    ]
    return [printable(cell, keep="") for cell in cells]
