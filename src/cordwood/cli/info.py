"""cordwood info: a checkpoint in a few lines."""

from __future__ import annotations

import click

from cordwood.cli.output import (
    columns,
    json_option,
    one_line,
    print_json,
    print_text,
    size_text,
)

__all__ = ["command"]

EXAMPLES = """
\b
Examples:
  cordwood info run/100
  cordwood info model.safetensors --json
"""


@click.command("info", epilog=EXAMPLES)
@click.argument("path")
@click.option("--prefix", help="Which tree of a directory that holds several.")
@click.option("--format", "format_", help="The format of a file whose suffix does not say it.")
@json_option
def command(path: str, prefix: str | None, format_: str | None, as_json: bool) -> None:
    """Tell what the checkpoint at PATH is: format, leaves, sizes, dtypes, and its strings."""
    from cordwood.api.listing import list_leaves
    from cordwood.engine.disk_usage import size_on_disk

    listing = list_leaves(path, prefix=prefix, format=format_)
    dtypes: dict[str, list[int]] = {}
    for row in listing.rows:
        count = dtypes.setdefault(row.what.partition("[")[0], [0, 0])
        count[0] += 1
        count[1] += row.size_bytes
    size = sum([row.size_bytes for row in listing.rows])
    disk = size_on_disk(path)
    if as_json:
        kinds = {name: {"leaves": n, "size_bytes": own} for name, (n, own) in dtypes.items()}
        print_json(
            {
                "path": path,
                "format": listing.format,
                "leaves": len(listing.rows),
                "size_bytes": size,
                "disk_bytes": disk,
                "dtypes": kinds,
                "metadata": dict(listing.metadata),
            }
        )
        return
    rows = [
        ["format", listing.format],
        ["leaves", str(len(listing.rows))],
        ["in memory", size_text(size)],
        ["on disk", size_text(disk)],
    ]
    for name, (number, total) in sorted(dtypes.items(), key=lambda item: -item[1][1]):
        noun = "leaf" if number == 1 else "leaves"
        rows.append([name, f"{number} {noun}, {size_text(total)}"])
    rows += [
        [one_line(f"metadata {name}"), one_line(text[:200])]
        for name, text in listing.metadata.items()
    ]
    print_text(f"{path}\n{columns(rows)}")
