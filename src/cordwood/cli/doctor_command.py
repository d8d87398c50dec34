"""cordwood doctor: is a path safe to save to?"""

from __future__ import annotations

import click

from cordwood.cli.output import columns, json_option, print_json, print_text
from cordwood.cli.path_arguments import PATH

EXAMPLES = """
\b
Examples:
  cordwood doctor /mnt/checkpoints
  cordwood doctor run/100 --json
"""


@click.command("doctor", epilog=EXAMPLES, short_help="Try whether a path is safe to save to.")
@click.argument("path", type=PATH, default=".")
@json_option
def command(path: str, as_json: bool) -> None:
    """Try whether PATH (here, by default) is a safe place for checkpoints.

    Writes 32 MiB there, flushes them, and tries renames of files and directories, links, locks,
    inode numbers and O_DIRECT; removes it all again. Exits with 1 where something is missing that
    a save needs.
    """
    from cordwood.storage.doctor import examine
    from cordwood.storage.urls import local_or_url, parse_url

    place = local_or_url(path)
    if parse_url(place) is not None:
        raise click.UsageError(f"{path}: expected a path; what an object store does is not tried")
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
