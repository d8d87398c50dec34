"""cordwood gc: what dead saves have left."""

from __future__ import annotations

import click

from cordwood.cli.output import json_option, print_json, print_text
from cordwood.cli.path_arguments import PATH

EXAMPLES = """
\b
Examples:
  cordwood gc run/100 --dry-run   what would be removed
  cordwood gc run/100
"""


@click.command("gc", epilog=EXAMPLES, short_help="Remove what dead saves have left.")
@click.argument("path", type=PATH)
@click.option("--dry-run", is_flag=True, help="Remove nothing; list what would be.")
@json_option
def command(path: str, dry_run: bool, as_json: bool) -> None:
    """Remove what saves that died have left in the directory at PATH, or beside it.

    No tree loses anything; files of saves that are under way, and those of others, stay.
    """
    from cordwood.api.gc import gc

    removed = gc(path, dry_run=dry_run)
    if as_json:
        print_json({"path": path, "dry_run": dry_run, "removed": removed})
        return
    verb = "would be removed" if dry_run else "removed"
    print_text("\n".join([*removed, f"{len(removed)} {verb}"]))
