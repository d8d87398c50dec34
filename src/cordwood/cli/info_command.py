"""cordwood info: a checkpoint in a few lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cordwood.api.list_leaves import LeafListing, LeafRow, list_leaves, list_trees
from cordwood.cli.output import (
    columns,
    json_option,
    print_json,
    print_text,
)
from cordwood.cli.path_arguments import SOURCE
from cordwood.errors import counted
from cordwood.message_text import printable, size_text

EXAMPLES = """
\b
Examples:
  cordwood info run/100
  cordwood info model.safetensors --json
"""


@click.command("info", epilog=EXAMPLES, short_help="Sum up a checkpoint: format, sizes, dtypes.")
@click.argument("path", type=SOURCE)
@click.option("--prefix", help="Which tree of a directory that holds several.")
@click.option("--format", "format_", help="The format of a file whose suffix does not say it.")
@json_option
def command(path: str, prefix: str | None, format_: str | None, as_json: bool) -> None:
    """Tell what the checkpoint at PATH is: format, leaves, sizes, dtypes, and its strings.

    Of a directory that holds several trees each is listed; --prefix tells more of one.
    """
    from cordwood.storage.disk_usage import size_on_disk
    from cordwood.storage.urls import parse_url

    trees = list_trees(path, format=format_) if prefix is None else [prefix]
    named = [tree for tree in trees if tree] if len(trees) > 1 else []
    listings = {tree: list_leaves(path, prefix=tree) for tree in named}
    found: dict[str, Any] = {"path": path}
    if trees == named:
        found["format"] = listings[named[0]].format
    else:
        found |= _described(list_leaves(path, prefix=prefix, format=format_))
    found["disk_bytes"] = None if parse_url(path) is not None else size_on_disk(path)
    if named:
        found["trees"] = [{"prefix": tree, **_sizes(listings[tree].rows)} for tree in named]
    if prefix is None and found["format"] == "orbax":
        found |= _items(path)
    if as_json:
        print_json(found)
        return
    text = f"{path}\n{columns(_rows(found))}"
    if named:
        text += f"\nfor more of one tree: cordwood info {shlex.quote(path)} --prefix "
        text += shlex.quote(named[0])
    print_text(text)


def _items(path: str) -> dict[str, Any]:
    """Return what lies beside the trees of an Orbax checkpoint, as JSON has it; {}: nothing."""
    from cordwood.formats.orbax.locate_trees import TREE
    from cordwood.manager.foreign_items import foreign_items

    items = {name: kind for name, kind in foreign_items(path).items() if kind != TREE}
    return {"items": items} if items else {}


def _sizes(rows: Sequence[LeafRow]) -> dict[str, int]:
    return {"leaves": len(rows), "size_bytes": sum([row.size_bytes for row in rows])}


def _described(listing: LeafListing) -> dict[str, Any]:
    """Return what is told of one tree, as JSON has it."""
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


def _rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Return what is told of a checkpoint as rows of two cells."""
    rows = [["format", found["format"]]]
    if "leaves" in found:
        rows.append(["leaves", str(found["leaves"])])
        rows.append(["in memory", size_text(found["size_bytes"])])
    disk = found["disk_bytes"]
    rows.append(["on disk", "-" if disk is None else size_text(disk)])
    dtypes = found.get("dtypes", {})
    for name, sizes in sorted(dtypes.items(), key=lambda item: -item[1]["size_bytes"]):
        rows.append([name, _sizes_text(sizes)])
    rows += [
        [printable(f"metadata {name}", keep=""), printable(text[:200], keep="")]
        for name, text in found.get("metadata", {}).items()
    ]
    for tree in found.get("trees", []):
        rows.append([printable(f"tree {tree['prefix']}", keep=""), _sizes_text(tree)])
    for name, kind in found.get("items", {}).items():
        rows.append([printable(f"item {name}", keep=""), kind])
    return rows


def _sizes_text(sizes: Mapping[str, Any]) -> str:
    return f"{counted(sizes['leaves'], 'leaf', 'leaves')}, {size_text(sizes['size_bytes'])}"
