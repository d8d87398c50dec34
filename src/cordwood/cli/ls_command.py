"""The command `cordwood ls`: list the leaves of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cordwood.api.list_leaves import LeafRow, group_rows, list_leaves, select_rows
from cordwood.cli.arguments import SOURCE, complete_key
from cordwood.cli.output import (
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
)
from cordwood.io.threads import gc_paused
from cordwood.message_text import size_text

EXAMPLES = """
\b
Examples:
  cordwood ls run/100                    every leaf: key path, dtype and shape, size
  cordwood ls run/100 --depth 1          one line for each key of the first level
  cordwood ls run/100 'params/**/bias'   the leaves that match a pattern
  cordwood ls run/100 --sort size        the largest first
"""


@click.command("ls", epilog=EXAMPLES, short_help="List the leaves of a checkpoint.")
@click.argument("path", type=SOURCE)
@click.argument("patterns", nargs=-1, shell_complete=complete_key)
@click.option("--depth", type=click.IntRange(1), help="Sum up leaves with more keys than this.")
@click.option(
    "--sort", type=click.Choice(["tree", "name", "size"]), default="tree", help="The order."
)
@click.option("--prefix", help="The tree to use, if the directory holds several.")
@click.option("--format", "format_", help="The format of the file, if its suffix does not name it.")
@json_option
def command(
    path: str,
    patterns: Sequence[str],
    depth: int | None,
    sort: str,
    prefix: str | None,
    format_: str | None,
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
    with gc_paused():  # the collector would traverse all rows several times
        _print(path, patterns, depth, sort, prefix, format_, as_json)


def _print(
    path: str,
    patterns: Sequence[str],
    depth: int | None,
    sort: str,
    prefix: str | None,
    format_: str | None,
    as_json: bool,
) -> None:
    listing = list_leaves(path, prefix=prefix, format=format_)
    rows: Sequence[LeafRow] = listing.rows
    if patterns:
        rows = select_rows(rows, patterns, where=path)
    count, size = len(rows), sum([row.size_bytes for row in rows])
    if depth is not None:
        rows = group_rows(rows, depth)
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
    noun = "leaf" if count == 1 else "leaves"
    total = f"{count} {noun}, {size_text(size)}, {listing.format}"
    if not print_table(("leaf", "type", "size", "parts, sharding"), lines, total, right=[2]):
        print_text("\n".join(filter(None, [columns(fitted(lines), right=[2]), total])))


def _partition(row: LeafRow) -> str:
    """Return how an array is partitioned: "in 8 parts, 4x2", or the recorded sharding."""
    parts = f"in {row.parts} parts" if row.parts > 1 else ""
    return ", ".join(filter(None, [parts, row.sharding or "x".join(map(str, row.cuts))]))
