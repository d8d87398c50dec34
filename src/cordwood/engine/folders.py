"""Whole directories: what lies in them, their permissions, their removal."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import chain

from cordwood.engine import system

__all__ = [
    "copy_mode",
    "count_files",
    "entries_of",
    "has_within",
    "list_folder",
    "names_in",
    "remove_tree",
    "subfolders",
]


def remove_tree(path: str) -> None:
    """Remove a directory and all in it, as far as that can be done. Follows no symlinks."""
    calls = system.current()
    folders = [path]
    for folder in folders:  # which grows meanwhile
        entries: dict[str, bool] = {}
        with suppress(OSError):  # the next save tries again
            entries = entries_of(folder)
        for name, is_folder in entries.items():
            if is_folder:
                folders.append(f"{folder}/{name}")
                continue
            with suppress(OSError):
                calls.unlink(f"{folder}/{name}")
    for folder in reversed(folders):
        with suppress(OSError):
            calls.rmdir(folder)


def entries_of(folder: str) -> dict[str, bool]:
    """What a directory holds, and whether it is a directory; {} where there is none."""
    found = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        # Not os.scandir, which an interrupt would leave open.
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                found[name] = stat.S_ISDIR(os.lstat(f"{folder}/{name}").st_mode)
    return found


def names_in(folder: str) -> list[str]:
    """What lies in a directory, sorted. Raises OSError as listing it does."""
    return sorted(os.listdir(folder))


def subfolders(folder: str) -> set[str]:
    """The directories in a directory; symbolic links to such are among them."""
    found = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(PermissionError):  # behind a link
                if entry.is_dir():
                    found.add(entry.name)
    return found


def list_folder(folder: str) -> list[os.DirEntry[str]]:
    """What a directory holds, without a look at each; [] where there is none."""
    found: list[os.DirEntry[str]] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        # No bytecode between: an interrupt would leave it open.
        found.extend(chain.from_iterable(map(os.scandir, (folder,))))
    return found


def has_within(folder: str, name: str, *, at_most: int) -> bool:
    """Whether a file of that name lies in a directory, at any depth.

    No more than `at_most` entries are looked at, and one directory. Follows no symlinks, and
    passes over directories that may not be read, such as lost+found.
    """
    folders = [folder]
    seen = 0
    while folders and seen <= at_most:
        each = folders.pop()
        try:
            entries = entries_of(each)
        except PermissionError:
            if each == folder:
                raise
            continue
        if entries.get(name) is False:
            return True
        seen += len(entries)
        folders += [f"{each}/{inner}" for inner, is_folder in entries.items() if is_folder]
    return False


def copy_mode(source: str, target: str) -> None:
    """Give one directory the permissions of another."""
    mode = stat.S_IMODE(os.stat(source).st_mode)
    if stat.S_IMODE(os.stat(target).st_mode) != mode:
        system.current().chmod(target, mode)


def count_files(folder: str, *, at_most: int) -> int:
    """How many files lie in a directory, at any depth; no further than one above `at_most`.

    More directories than that count as too many files.
    """
    count = 0
    folders = [folder]
    for each in folders:  # which grows meanwhile
        for name, is_folder in entries_of(each).items():
            if is_folder:
                folders.append(f"{each}/{name}")
            else:
                count += 1
            if max(count, len(folders)) > at_most:
                return at_most + 1
    return count
