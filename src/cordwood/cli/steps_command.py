"""cordwood steps: the checkpoints of a run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from cordwood.cli.output import (
    as_json_has_it,
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
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

_NO_STEP = "not restored by CheckpointManager, which takes 100, checkpoint_100 and run-100"
_TITLES = ("step", "format", "size", "saved", "metrics", "note")


class _Step(NamedTuple):
    """A checkpoint in the directory, as JSON has it."""

    step: int | None
    name: str
    format: str
    disk_bytes: int | None  # None: of a URL
    time: float | None  # when its save began, or it was last modified; seconds since 1970
    metrics: Mapping[str, float]
    pinned: bool
    problem: str  # why it is not whole
    note: str  # why CheckpointManager does not restore or delete it, where it is whole


@click.command("steps", epilog=EXAMPLES, short_help="List the steps of a run.")
@click.argument("path", type=PATH)
@json_option
def command(path: str, as_json: bool) -> None:
    """List the steps in the directory PATH, the oldest first.

    Of each its format, size, time and metrics, whether a job has pinned it, and why no policy of a
    CheckpointManager restores or deletes it, where that is so. Which steps a policy keeps only the
    job knows: `manager.plan()` tells it. The time is that when the save began; of what no manager
    has saved, that of the last change.

    Whether a step is whole is told by its index; `cordwood verify` reads the rest. Exits with 1
    where the newest is not.
    """
    from cordwood.api.detect import detect

    found = detect(path)
    if found.format != "steps":
        raise click.UsageError(f"{path} is {found.description}, not a directory of steps")
    steps = _steps(path, found.steps)
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

    place = open_step_storage(path, RULES.index_name)
    known = {each.entry: each for each in StepListing(place).entries(start=0) if each.finished}
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
        own = known.get(name)
        if own is not None:
            saved = own.saved if own.counts else own.noted
            step = step._replace(
                step=own.step,
                pinned=place.in_use(name),
                problem=own.problem if own.damaged else "",
                note="" if own.counts or own.damaged else f"{own.problem}: no policy deletes it",
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
    metrics = {name: as_json_has_it(value) for name, value in step.metrics.items()}
    return {**step._asdict(), "time": _time(step.time, utc=True), "metrics": metrics}


def _time(seconds: float | None, *, utc: bool = False) -> str | None:
    """Return a time for people, or in UTC as ISO 8601 has it; None where it is not known."""
    if seconds is None:
        return None
    try:
        time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return f"{time:%Y-%m-%dT%H:%M:%SZ}" if utc else f"{time.astimezone():%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # a record may hold any number
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
        step.format or "not whole",
        "-" if step.disk_bytes is None else size_text(step.disk_bytes),
        _time(step.time) or "",
        ", ".join(metrics),
        "; ".join(notes),
    ]
    return [printable(cell, keep="") for cell in cells]
