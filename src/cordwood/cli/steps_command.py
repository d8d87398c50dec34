"""The command `cordwood steps`: list the checkpoints of a run."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from cordwood.cli.arguments import PATH
from cordwood.cli.output import (
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
    to_json_value,
)
from cordwood.message_text import counted, printable, size_text

if TYPE_CHECKING:
    from cordwood.manager.steps import StepSummary

EXAMPLES = """
\b
Examples:
  cordwood steps run
  cordwood steps run --json
"""

_TITLES = ("step", "format", "size", "saved", "metrics", "note")


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
    from cordwood.manager.steps import summarize_steps

    detected = detect(path)
    if detected.format != "steps":
        raise click.UsageError(f"{path} is {detected.description}, not a directory of steps")
    steps = summarize_steps(path, detected.steps)
    if as_json:
        print_json({"path": path, "steps": [_as_json(step) for step in steps]})
    else:
        _print(steps)
    if steps and steps[-1].problem:
        raise click.exceptions.Exit(1)


def _as_json(step: StepSummary) -> dict[str, Any]:
    metrics = {name: to_json_value(value) for name, value in step.metrics.items()}
    members = {name: value for name, value in step._asdict().items() if name != "state"}
    return {**members, "time": _time(step.time, utc=True), "metrics": metrics}


def _time(seconds: float | None, *, utc: bool = False) -> str | None:
    """Return a time as local time to read, or as UTC in ISO 8601; None if it is unknown."""
    if seconds is None:
        return None
    try:
        time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return f"{time:%Y-%m-%dT%H:%M:%SZ}" if utc else f"{time.astimezone():%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # a step record may contain any number
        return None


def _print(steps: list[StepSummary]) -> None:
    rows = [_row(step) for step in steps]
    caption = counted(len(steps), "step")
    if print_table(_TITLES, rows, caption, right=[2]):
        return
    kept = [i for i, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    print_text(columns(fitted([[row[i] for i in kept] for row in rows]), right=[2]))


def _row(step: StepSummary) -> list[str]:
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
