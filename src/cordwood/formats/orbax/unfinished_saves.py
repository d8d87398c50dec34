"""Saves of Orbax that have not ended: their names, and the checks of a commit.

A save writes into `*.orbax-checkpoint-tmp`, which it renames at its end. Below gs://, and where
users choose so, Orbax does not rename: a step without `commit_success.txt` is an unfinished save,
if its items have that file or `_CHECKPOINT_METADATA` has no time of a commit.
"""

from __future__ import annotations

import re

from cordwood.formats.orbax.checkpoint_metadata import read_checkpoint_metadata
from cordwood.formats.orbax.readable_entries import has_entry, sizes_in
from cordwood.formats.place import Place
from cordwood.storage.paths import kind_at
from cordwood.storage.readable_directory import FOLDER, ReadableDirectory

COMMIT_NAME = "commit_success.txt"
_IN_PLACE = "gs://"  # where Orbax renames nothing
_NAME = re.compile(r"\.(orbax-checkpoint-tmp(-[0-9]+)?|partial_save)$")


def is_unfinished_name(name: str) -> bool:
    """Return whether `name` is the name of a directory of an unfinished save."""
    return _NAME.search(name) is not None


def is_unfinished_directory(place: Place) -> bool:
    """Return whether a place is a directory with the name of an unfinished save."""
    return is_unfinished_name(place.path.rstrip("/")) and (
        place.directory is not None or kind_at(place.path) == "a folder"
    )


def is_tree_committed(directory: ReadableDirectory) -> bool:
    """Return False for a directory that is a tree and, by its names, was not committed."""
    return not directory.name.startswith(_IN_PLACE) or has_entry(directory, COMMIT_NAME)


def are_items_committed(directory: ReadableDirectory, folder: str) -> bool:
    """Return False for a directory of items that, by its names, was not committed.

    Args:
        directory: the directory of the checkpoint, or of its run.
        folder: the step in a run; "" for the directory itself.
    """
    path = f"{folder}/" if folder else ""
    if has_entry(directory, path + COMMIT_NAME):
        return True
    if directory.name.startswith(_IN_PLACE):
        return False
    return not any(
        size == FOLDER and has_entry(directory, f"{path}{item}/{COMMIT_NAME}")
        for item, size in sizes_in(directory, folder or ".").items()
    )


def is_commit_recorded(directory: ReadableDirectory) -> bool:
    """Return False if the save of a checkpoint has begun, and no commit is recorded.

    Orbax has written the time of the commit since 0.5, before a rename and before the commit file.
    """
    if has_entry(directory, COMMIT_NAME):
        return True
    about = read_checkpoint_metadata(directory)
    return about.is_committed or not about.is_begun
