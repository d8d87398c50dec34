"""cordwood steps: the checkpoints of a run."""

from __future__ import annotations

from typing import NamedTuple

import click

from cordwood.cli.output import columns, json_option, print_json, print_text, size_text

__all__ = ["command"]

EXAMPLES = """
\b
Examples:
  cordwood steps run
  cordwood steps run --json
"""


class _Step(NamedTuple):
    """One of them."""

    step: str
    format: str
    disk_bytes: int
    problem: str  # why it is not whole


@click.command("steps", epilog=EXAMPLES)
@click.argument("path")
@json_option
def command(path: str, as_json: bool) -> None:
    """List the steps in the directory PATH, the oldest first: format, size, and which are whole.

    Whether a step is whole is told by its index; `cordwood verify` reads the rest. Exits with 1
    where the newest is not.
    """
    from cordwood.api.detect import detect
    from cordwood.engine.disk_usage import size_on_disk
    from cordwood.errors import CordwoodError

    found = detect(path)
    if found.format != "steps":
        raise click.UsageError(f"{path} is {found.description}, not a directory of steps")
    steps = []
    for name in found.steps:
        child = f"{path.rstrip('/')}/{name}"
        step = _Step(name, "", size_on_disk(child), "")
        try:
            steps.append(step._replace(format=detect(child).format))
        except (CordwoodError, OSError) as e:
            steps.append(step._replace(problem=str(e)))
    if as_json:
        print_json({"path": path, "steps": [step._asdict() for step in steps]})
    else:
        rows = [
            [step, format_ or "not whole", size_text(size), problem.partition(";")[0]]
            for step, format_, size, problem in steps
        ]
        print_text(columns(rows, right=[2]))
    if steps and steps[-1].problem:
        raise click.exceptions.Exit(1)
