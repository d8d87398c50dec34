"""The listing of all that lies at a path."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import LimitError
from cordwood.storage.directories import scan_directory

MAX_DEPTH = 100  # of the directories in a checkpoint or a run


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
