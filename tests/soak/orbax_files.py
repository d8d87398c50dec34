"""A reader of trees for Orbax that needs none of cordwood's code, but for the list of the files."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorstore as ts

from cordwood.formats.packs.for_orbax.orbax_sidecars import orbax_sidecars
from cordwood.formats.packs.parse_item import parse_items


def read_orbax_tree(folder: str) -> Any:
    """Return the arrays of a tree of nested dicts; None if a file of its index is missing."""
    if not os.path.exists(f"{folder}/_METADATA"):
        return None
    checkpoint = folder if os.path.exists(f"{folder}/cordwood.json") else os.path.dirname(folder)
    if missing_for_orbax(checkpoint):
        return None
    with open(f"{folder}/_METADATA") as file:
        leaves = json.load(file)["tree_metadata"].values()
    tree: dict[str, Any] = {}
    for leaf in leaves:
        keys = [each["key"] for each in leaf["key_metadata"]]
        path = f"{'.'.join(keys)}/"
        kvstore = {"driver": "ocdbt", "base": f"file://{folder}/", "path": path}
        at = tree
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()
    return tree


def missing_for_orbax(path: str) -> list[str]:
    """Return the files of the index for Orbax that a directory of packs lacks."""
    if not os.path.exists(f"{path}/cordwood.json"):
        return []
    with open(f"{path}/cordwood.json", "rb") as file:
        files = orbax_sidecars(parse_items(file.read(), name=path))
    names = [name for name, content in files.items() if content is not None]
    return [name for name in names if not os.path.lexists(f"{path}/{name}")]
