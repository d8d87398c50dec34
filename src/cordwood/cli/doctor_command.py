"""The command `cordwood doctor`: test whether it is safe to save checkpoints at a path."""

from __future__ import annotations

import click

from cordwood.cli.arguments import PATH
from cordwood.cli.output import columns, json_option, print_json, print_text

EXAMPLES = """
\b
Examples:
  cordwood doctor /mnt/checkpoints
  cordwood doctor run/100 --json
"""


@click.command("doctor", epilog=EXAMPLES, short_help="Test whether a path is safe to save to.")
@click.argument("path", type=PATH, default=".")
@json_option
def command(path: str, as_json: bool) -> None:
    """Test whether PATH (default: the current directory) is safe to save checkpoints to.

    Write and flush 32 MiB there, and test renames of files and directories, hard links, locks,
    inode numbers and O_DIRECT. Remove all test files afterwards. Exit with 1 if something that a
    save needs does not work.
    """
    from cordwood.storage.doctor import examine
    from cordwood.storage.paths import local_or_url, parse_url

    place = local_or_url(path)
    if parse_url(place) is not None:
        raise click.UsageError(f"{path}: expected a local path; doctor does not test object stores")
    findings = examine(place)
    problems = [each for each in findings if each.needed and not each.good]
    if as_json:
        print_json(
            {"path": path, "safe": not problems, "findings": [f._asdict() for f in findings]}
        )
    else:
        rows = [
            ["ok" if each.good else "PROBLEM" if each.needed else "slower", each.name, each.text]
            for each in findings
        ]
        verdict = "not safe to save to" if problems else "safe to save to"
        print_text(f"{columns(rows)}\n{path}: {verdict}")
    if problems:
        raise click.exceptions.Exit(1)
