"""cordwood ls: the leaves of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cordwood.api.list_leaves import LeafRow, group_rows, list_leaves, select_rows
from cordwood.cli.output import (
    columns,
    fitted,
    json_option,
    print_json,
    print_table,
    print_text,
)
from cordwood.cli.path_arguments import SOURCE, complete_key
from cordwood.io.gc_pause import gc_paused
from cordwood.message_text import size_text

EXAMPLES = """
\b
Examples:
  cordwood ls run/100                    every leaf: key path, dtype and shape, size
  cordwood ls run/100 --depth 1          containers of the first level, summed up
  cordwood ls run/100 'params/**/bias'   the leaves that a pattern takes
  cordwood ls run/100 --sort size        the largest first
"""


@click.command("ls", epilog=EXAMPLES, short_help="List the leaves of a checkpoint.")
@click.argument("path", type=SOURCE)
@click.argument("patterns", nargs=-1, shell_complete=complete_key)
@click.option("--depth", type=click.IntRange(1), help="Sum up what lies deeper than so many keys.")
@click.option("--sort", type=click.Choice(["tree", "name", "size"]), default="tree", help="Order.")
@click.option("--prefix", help="Which tree of a directory that holds several.")
@click.option("--format", "format_", help="The format of a file whose suffix does not say it.")
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

    Of each its key path, dtype and shape, size in memory, and how it was spread over devices where
    the index tells: in how many parts it lies and how many along each axis, or the sharding that
    Orbax has noted. On a terminal, what fits its screen is a table; all else is plain rows.
    PATTERNS are held against the key paths: * is any part of a key, ** any
    number of keys, and a pattern that takes a container takes all in it.
    """
    with gc_paused():  # which would look through all rows, several times
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
            _spread(row) if row.parts > 1 or row.sharding else "",
        ]
        for row in rows
    ]
    noun = "leaf" if count == 1 else "leaves"
    total = f"{count} {noun}, {size_text(size)}, {listing.format}"
    if not print_table(("leaf", "type", "size", "parts, sharding"), lines, total, right=[2]):
        print_text("\n".join(filter(None, [columns(fitted(lines), right=[2]), total])))


def _spread(row: LeafRow) -> str:
    """Return how an array is spread: "in 8 parts, 4x2", or what its writer has noted."""
    parts = f"in {row.parts} parts" if row.parts > 1 else ""
    return ", ".join(filter(None, [parts, row.sharding or "x".join(map(str, row.cuts))]))
