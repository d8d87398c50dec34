"""Listing of all that lies at a path, and removal of exactly what was listed.

What is removed is first renamed to a hidden name, and listed once more: so a file that has come
meanwhile is never removed, and the rest gets its name again. `killed_removals` has the names that
a removal which is killed leaves.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import LimitError, NotACheckpointError
from cordwood.message_text import first_names
from cordwood.storage import syscalls
from cordwood.storage.directories import scan_directory, sync_directory
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.paths import LOCK_NAME, temporary_path
from cordwood.storage.removal.killed_removals import (
    RemovedNames,
    finish_removals,
    hidden_path,
    remove_listed_names,
    rename_back,
    write_list,
)
from cordwood.storage.storage_protocol import NamingRules

MAX_DEPTH = 100  # of the directories in a checkpoint or a run
_MAX_SHOWN = 3


class Listing(NamedTuple):
    """All that lies in a directory, by relative paths. No link and no mount point is entered.

    Attributes:
        files: the regular files, with their sizes.
        folders: the directories; parents come before what is in them.
        others: mount points and special files.
        links: symbolic links.
        stamps: of each file a value that changes with every write.
    """

    files: Mapping[str, int]
    folders: Sequence[str]
    others: Sequence[str]
    stamps: Mapping[str, Hashable]
    links: Sequence[str] = ()


def list_tree(path: str) -> Listing:
    """List a directory, or a single file, whose relative path is "".

    Raises LimitError for directories that are nested more than MAX_DEPTH deep.
    """
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        return Listing({"": status.st_size}, [], [], {"": _stamp(status)})
    files: dict[str, int] = {}
    stamps: dict[str, Hashable] = {}
    folders = [""] if stat.S_ISDIR(status.st_mode) and not os.path.ismount(path) else []
    others = [] if folders else [""]
    links: list[str] = []
    for folder in folders:  # the loop appends to this list
        for each in scan_directory(f"{path}/{folder}"):
            name = f"{folder}/{each.name}" if folder else each.name
            inner = each.stat(follow_symlinks=False)
            if stat.S_ISREG(inner.st_mode):
                files[name] = inner.st_size
                stamps[name] = _stamp(inner)
            elif stat.S_ISDIR(inner.st_mode) and inner.st_dev == status.st_dev:
                if name.count("/") >= MAX_DEPTH:
                    first = name.partition("/")[0]
                    raise LimitError(
                        f"{path}: the directories in {first} are nested more than {MAX_DEPTH} "
                        "deep, and no checkpoint's are: move that away, or remove it by rm -r"
                    )
                folders.append(name)
            else:
                (links if stat.S_ISLNK(inner.st_mode) else others).append(name)
    return Listing(files, folders[1:], others, stamps, links)


def _stamp(status: os.stat_result) -> Hashable:
    return status.st_ino, status.st_mtime_ns


def remove_listed(path: str, listing: Listing, rules: NamingRules, steps: Sequence[str]) -> None:
    """Remove a file or a directory, if it is still as it was listed.

    Args:
        path: the file or directory; not a symbolic link.
        listing: what `list_tree` has returned.
        rules: the naming rules of the steps of managers.
        steps: relative paths of directories that managers may be saving, or have pinned.

    Raises NotACheckpointError if something has come or gone meanwhile, or is in use: then nothing
    is removed. Raises OSError.
    """
    parent, name = os.path.split(os.path.realpath(path))
    finish_removals(parent)
    with locked(f"{parent}/{LOCK_NAME}"):
        for step in steps:
            folder, step_name = os.path.split(os.path.normpath(f"{parent}/{name}/{step}"))
            if LocalStepStorage(LocalPath(folder), rules).in_use(step_name):
                raise NotACheckpointError(
                    f"{folder}/{step_name}: it is in use: a job saves it, or has pinned it; "
                    "nothing was removed"
                )
        away = hidden_path(parent, name)
        syscalls.current().replace(f"{parent}/{name}", away)
        if list_tree(away) != listing:
            rename_back(away, f"{parent}/{name}")
            raise NotACheckpointError(
                f"{path}: it has changed since it was shown, and nothing was removed; try again"
            )
        names = RemovedNames([*listing.files, *listing.links], listing.folders)
        try:
            write_list(away, names)
        except BaseException as e:
            if getattr(e, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                rename_back(away, f"{parent}/{name}")
                raise
            unlisted, away = away, temporary_path(parent, name, "deleted")  # never renamed back
            syscalls.current().replace(unlisted, away)
            sync_directory(parent)
    remove_listed_names(away, names)
    if os.path.lexists(away):
        remaining = [*list_tree(away).files][:_MAX_SHOWN]
        raise NotACheckpointError(
            f"{path}: not all of it could be removed: {away} still has "
            f"{first_names(remaining, _MAX_SHOWN) or 'directories'}"
        )
