"""Orbax checkpoints to read: the golden ones, and how to damage copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cordwood.formats.orbax.read_index import open_tree
from cordwood.index import Index
from cordwood.storage.local_directory import LocalDirectory
from tests.golden.orbax_checkpoints import GOLDEN, LAYOUTS

__all__ = ["EVERY", "change", "copied", "index_at", "tree_folder"]

EVERY = list(LAYOUTS)


def tree_folder(layout: str) -> str:
    """Return the directory of the tree, relative to the checkpoint."""
    return "state" if layout == "v1" else "."


def copied(layout: str, folder: Path) -> Path:
    """Return a copy of a golden checkpoint; the directory of its tree."""
    shutil.copytree(GOLDEN / layout, folder / layout)
    return folder / layout / tree_folder(layout)


def index_at(path: Path) -> Index:
    with LocalDirectory(path) as directory:
        return open_tree(directory, warn=False).index


def change(path: Path, edit: Callable[[Any], object]) -> None:
    """Change a JSON file in place."""
    members = json.loads(path.read_text())
    edit(members)
    path.write_text(json.dumps(members))
