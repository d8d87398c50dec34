"""The command `cordwood gc`: remove files that interrupted saves have left."""

from __future__ import annotations

import click

from cordwood.cli.arguments import PATH
from cordwood.cli.output import json_option, print_json, print_text

EXAMPLES = """
\b
Examples:
  cordwood gc run/100 --dry-run   only list the files
  cordwood gc run/100
"""


@click.command("gc", epilog=EXAMPLES, short_help="Remove files that interrupted saves have left.")
@click.argument("path", type=PATH)
@click.option("--dry-run", is_flag=True, help="Remove nothing, only list.")
@json_option
def command(path: str, dry_run: bool, as_json: bool) -> None:
    """Remove files that interrupted saves have left in the directory at PATH, or beside it.

    Every saved tree stays as it is. Files of saves that are still running, and files that cordwood
    did not write, are kept.
    """
    from cordwood.api.gc import gc

    removed = gc(path, dry_run=dry_run)
    if as_json:
        print_json({"path": path, "dry_run": dry_run, "removed": removed})
        return
    verb = "would be removed" if dry_run else "removed"
    print_text("\n".join([*removed, f"{len(removed)} {verb}"]))
