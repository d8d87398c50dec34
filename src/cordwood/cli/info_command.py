"""The command `cordwood info`: summarize a checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cordwood.api.list_leaves import LeafListing, LeafRow, list_leaves, list_trees
from cordwood.cli.arguments import SOURCE
from cordwood.cli.output import (
    columns,
    json_option,
    print_json,
    print_text,
)
from cordwood.message_text import counted, printable, size_text

EXAMPLES = """
\b
Examples:
  cordwood info run/100
  cordwood info model.safetensors --json
"""


@click.command("info", epilog=EXAMPLES, short_help="Summarize a checkpoint: format, sizes, dtypes.")
@click.argument("path", type=SOURCE)
@click.option("--prefix", help="The tree to use, if the directory holds several.")
@click.option("--format", "format_", help="The format of the file, if its suffix does not name it.")
@json_option
def command(path: str, prefix: str | None, format_: str | None, as_json: bool) -> None:
    """Summarize the checkpoint at PATH: format, leaves, sizes, dtypes and metadata.

    If the directory holds several trees, list each of them; --prefix prints more about one.
    """
    from cordwood.storage.directories import size_on_disk
    from cordwood.storage.paths import parse_url

    trees = list_trees(path, format=format_) if prefix is None else [prefix]
    named = [tree for tree in trees if tree] if len(trees) > 1 else []
    listings = {tree: list_leaves(path, prefix=tree) for tree in named}
    summary: dict[str, Any] = {"path": path}
    if trees == named:
        summary["format"] = listings[named[0]].format
    else:
        summary |= _summary(list_leaves(path, prefix=prefix, format=format_))
    summary["disk_bytes"] = None if parse_url(path) is not None else size_on_disk(path)
    if named:
        summary["trees"] = [{"prefix": tree, **_sizes(listings[tree].rows)} for tree in named]
    if prefix is None and summary["format"] == "orbax":
        summary |= _items(path)
    if as_json:
        print_json(summary)
        return
    text = f"{path}\n{columns(_rows(summary))}"
    if named:
        text += f"\nfor more about one tree: cordwood info {shlex.quote(path)} --prefix "
        text += shlex.quote(named[0])
    print_text(text)


def _items(path: str) -> dict[str, Any]:
    """Return the items of an Orbax checkpoint that are not trees, for JSON; {} if none."""
    from cordwood.formats.orbax.locate_trees import TREE
    from cordwood.manager.step_items import foreign_items

    items = {name: kind for name, kind in foreign_items(path).items() if kind != TREE}
    return {"items": items} if items else {}


def _sizes(rows: Sequence[LeafRow]) -> dict[str, int]:
    return {"leaves": len(rows), "size_bytes": sum([row.size_bytes for row in rows])}


def _summary(listing: LeafListing) -> dict[str, Any]:
    """Summarize one tree, for JSON."""
    dtypes: dict[str, list[LeafRow]] = {}
    for row in listing.rows:
        dtypes.setdefault(row.what.partition("[")[0], []).append(row)
    return {
        "format": listing.format,
        **_sizes(listing.rows),
        "disk_bytes": None,
        "dtypes": {name: _sizes(rows) for name, rows in dtypes.items()},
        "metadata": dict(listing.metadata),
    }


def _rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Return the summary of a checkpoint as rows of two cells."""
    rows = [["format", summary["format"]]]
    if "leaves" in summary:
        rows.append(["leaves", str(summary["leaves"])])
        rows.append(["in memory", size_text(summary["size_bytes"])])
    disk = summary["disk_bytes"]
    rows.append(["on disk", "-" if disk is None else size_text(disk)])
    dtypes = summary.get("dtypes", {})
    for name, sizes in sorted(dtypes.items(), key=lambda item: -item[1]["size_bytes"]):
        rows.append([name, _sizes_text(sizes)])
    rows += [
        [printable(f"metadata {name}", keep=""), printable(text[:200], keep="")]
        for name, text in summary.get("metadata", {}).items()
    ]
    for tree in summary.get("trees", []):
        rows.append([printable(f"tree {tree['prefix']}", keep=""), _sizes_text(tree)])
    for name, kind in summary.get("items", {}).items():
        rows.append([printable(f"item {name}", keep=""), kind])
    return rows


def _sizes_text(sizes: Mapping[str, Any]) -> str:
    return f"{counted(sizes['leaves'], 'leaf', 'leaves')}, {size_text(sizes['size_bytes'])}"
