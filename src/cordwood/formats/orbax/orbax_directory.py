"""The trees, items, steps and unfinished saves in a directory of Orbax.

checkpoint/_METADATA                    one tree (before 0.3: checkpoint/checkpoint)
checkpoint/{default,state,...}/_METADATA    items
root/{1,2,...}/...                      steps, each a checkpoint
*.orbax-checkpoint-tmp                  an unfinished save
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from cordwood.errors import CorruptionError
from cordwood.formats.orbax.aggregate_file import is_aggregate_at
from cordwood.formats.orbax.array_item import is_array_at
from cordwood.formats.orbax.checkpoint_metadata import CHECKPOINT_NAME
from cordwood.formats.orbax.readable_entries import has_entry, sizes_in
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.orbax.unfinished_saves import (
    are_items_committed,
    is_commit_recorded,
    is_tree_committed,
    is_unfinished_name,
)
from cordwood.formats.place import Place
from cordwood.storage.readable_directory import FOLDER, OTHER, ReadableDirectory

_MARKERS = frozenset({CHECKPOINT_NAME, "orbax.checkpoint", "_ROOT_METADATA"})
_STEP = re.compile(r"(?:.*_)?([0-9]{1,18})")  # 100, or model_100 with a step_prefix


class OrbaxDirectory(NamedTuple):
    """The trees, steps and unfinished saves of Orbax in a directory."""

    trees: tuple[str, ...] = ()  # items that are trees; '' is the directory itself
    others: tuple[str, ...] = ()  # items that are not trees: JSON, metrics
    steps: tuple[str, ...] = ()  # directories of checkpoints, the newest last
    unfinished: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # symbolic links and special files, which are not followed
    marked: bool = False  # True if there is a file that only Orbax writes
    committed: bool = True  # False for a checkpoint whose save did not end

    @property
    def is_orbax(self) -> bool:
        """True if Orbax wrote something here."""
        return self.marked or bool(self.trees or self.steps or self.unfinished)


def inspect_place(place: Place) -> OrbaxDirectory:
    """Return what Orbax wrote at a place; nothing if there is no directory."""
    with suppress(FileNotFoundError, NotADirectoryError), place.opened() as directory:
        return inspect_directory(directory)
    return OrbaxDirectory()


def inspect_checkpoint(directory: ReadableDirectory) -> OrbaxDirectory:
    """List the trees of a checkpoint that is to be read, and look for its commit.

    Beside the names of the files, one small file is read.
    """
    entries = inspect_directory(directory)
    if not entries.committed or entries.steps:
        return entries
    return entries._replace(committed=is_commit_recorded(directory))


def inspect_directory(directory: ReadableDirectory) -> OrbaxDirectory:
    """List the trees and steps in a directory by the names of its files.

    Of a file `checkpoint`, which may be a tree of an old version, the first byte is read.
    """
    if has_tree(directory, ""):  # there may be a directory for every leaf beside it
        return OrbaxDirectory(trees=("",), marked=True, committed=is_tree_committed(directory))
    sizes = directory.sizes(".")
    folders = [name for name, size in sorted(sizes.items()) if size == FOLDER]
    unfinished = [name for name in folders if is_unfinished_name(name)]
    trees: list[str] = []
    others: list[str] = []
    steps: list[str] = []
    for name in folders:
        if is_unfinished_name(name):
            continue
        if CHECKPOINT_NAME not in sizes and _is_step(directory, name):
            (steps if are_items_committed(directory, name) else unfinished).append(name)
        elif has_tree(directory, name):
            trees.append(name)
        else:
            others.append(name)
    steps.sort(key=_number)
    if steps:
        trees = []
    return OrbaxDirectory(
        trees=tuple(trees),
        others=tuple(others),
        steps=tuple(steps),
        unfinished=tuple(unfinished),
        links=tuple([name for name, size in sorted(sizes.items()) if size == OTHER]),
        marked=not _MARKERS.isdisjoint(sizes),
        committed=not trees or are_items_committed(directory, ""),
    )


def has_tree(directory: ReadableDirectory, folder: str) -> bool:
    """Return whether a directory is a tree: by `_METADATA`, or the file that was its forerunner."""
    if has_entry(directory, f"{folder}/{TREE_NAME}" if folder else TREE_NAME):
        return True
    with suppress(CorruptionError, PermissionError):
        return is_aggregate_at(directory, folder) or is_array_at(directory, folder)
    return False


def _is_step(directory: ReadableDirectory, name: str) -> bool:
    if has_entry(directory, f"{name}/{CHECKPOINT_NAME}"):
        return True
    if _STEP.fullmatch(name) is None:
        return False
    if has_tree(directory, name):
        return True
    return any(
        size == FOLDER and has_tree(directory, f"{name}/{item}")
        for item, size in sizes_in(directory, name).items()
    )


def _number(name: str) -> tuple[int, str]:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else -1, name
