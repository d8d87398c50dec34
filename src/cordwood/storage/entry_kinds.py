"""The kinds of the entries of a directory, with symbolic links followed as far as they lead."""

from __future__ import annotations

import os


def leads_to_directory(entry: os.DirEntry[str]) -> bool:
    """Return True for a directory, and for a symbolic link to one that this user can reach.

    A link in a loop, or to what is missing or forbidden, leads nowhere.
    """
    try:
        return entry.is_dir()
    except OSError:
        if entry.is_symlink():
            return False
        raise


def leads_to_file(entry: os.DirEntry[str]) -> bool:
    """Return True for a regular file, and for a symbolic link to one, as `leads_to_directory`."""
    try:
        return entry.is_file()
    except OSError:
        if entry.is_symlink():
            return False
        raise


def is_removed(entry: os.DirEntry[str]) -> bool:
    """Return True if there is nothing by that name any more, not even a link that leads nowhere.

    Call it where an entry is of no kind: file systems that list no kinds are asked for each, and
    `os.DirEntry` answers False to all questions about a removed entry.
    """
    try:
        entry.stat(follow_symlinks=False)
    except OSError as e:
        return isinstance(e, FileNotFoundError)
    return False
