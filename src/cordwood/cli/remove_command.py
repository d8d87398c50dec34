"""The command `cordwood rm`: remove one checkpoint, or a run, of any tool."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from cordwood.cli.arguments import PATH
from cordwood.cli.output import json_option, print_answer
from cordwood.message_text import counted, printable, size_text

EXAMPLES = """
\b
Examples:
  cordwood rm run/100              one step; asks first
  cordwood rm run --dry-run        show what would be removed of a run
  cordwood rm s3://bucket/run/100 --yes
"""


@click.command("rm", epilog=EXAMPLES, short_help="Remove a checkpoint or a run.")
@click.argument("path", type=PATH)
@click.option("--dry-run", is_flag=True, help="Remove nothing, only show what would be removed.")
@click.option("--yes", "--force", "-y", "yes", is_flag=True, help="Do not ask.")
@json_option
def rm_command(path: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the checkpoint at PATH, or the run at PATH with all its steps.

    It may be of any tool, a file or a directory, on a disk or in a store. Show what it is, its size
    and the number of its files, and ask. Remove nothing if something lies inside that is no part of
    the checkpoint, and nothing that is no checkpoint. A step that a job has pinned, or is saving,
    stays. `run/latest` and `run/best` are refused, because they may be another step by then: name
    the step.
    """
    from cordwood.removing.remove_checkpoint import plan_removal, remove

    _refuse_nickname(path)
    plan = plan_removal(path)
    files = counted(len(plan.listing.files), "file")
    what = f"{plan.location}: {plan.description}"
    if plan.steps:
        what += f" of {counted(len(plan.steps), 'step')} ({', '.join(plan.steps[:8])}"
        what += ", ...)" if len(plan.steps) > 8 else ")"
    what += f", {files}, {size_text(plan.size_bytes)}"
    document: dict[str, Any] = {
        "path": str(plan.location),
        "format": plan.format,
        "description": plan.description,
        "steps": list(plan.steps),
        "files": len(plan.listing.files),
        "size_bytes": plan.size_bytes,
        "removed": False,
    }
    if dry_run:
        print_answer(f"{what}: would be removed", document, as_json=as_json)
        return
    if not yes:
        click.echo(printable(what), err=True)
        if not _confirmed():
            print_answer("nothing was removed", document, as_json=as_json)
            raise click.exceptions.Exit(1)
    remove(plan)
    print_answer(f"{what}: removed", {**document, "removed": True}, as_json=as_json)


def _confirmed() -> bool:
    try:
        return click.confirm("Remove it?", err=True)
    except click.Abort:  # no terminal, and no answer
        raise click.UsageError("nothing was removed: pass --yes where nobody can answer") from None


def _refuse_nickname(path: str) -> None:
    """Raise UsageError for `run/latest` and `run/best`, unless something of that name exists."""
    from cordwood.loading.locate_step import is_nickname, locate_checkpoint
    from cordwood.storage.locations import parse_location

    location = parse_location(path)
    if not is_nickname(location):
        return
    step = path
    with suppress(OSError, ValueError):
        step = str(locate_checkpoint(location))
    meaning = f", which is {step} now" if step != path else ""
    raise click.UsageError(
        f"{path}{meaning}, may be another step in a moment: name the step that is to be removed"
    )
