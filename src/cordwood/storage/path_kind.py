"""The kind of a path: nothing, a file, a directory, a link or something else."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cordwood.errors import StorageError

_WHY = {
    errno.ELOOP: "a symbolic link leads back to itself; expected a checkpoint",
    errno.ENAMETOOLONG: "longer than a name or a path can be; expected that of a checkpoint",
}


def kind_at(
    path: str | os.PathLike[str],
) -> Literal["nothing", "a file", "a folder", "something else"]:
    """Return what a path leads to. Symbolic links are followed.

    Raises StorageError for circular links and for names that are too long; PermissionError. Each
    names the path.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as e:
        if e.errno in _WHY:
            raise StorageError(e.errno, _WHY[e.errno], os.fspath(path)) from e
        raise
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "something else"


def blocking_parent(path: str | os.PathLike[str]) -> str | None:
    """Return the existing parent of a path that is not a directory; None if there is none."""
    for parent in Path(path).parents:
        with suppress(OSError):
            return None if stat.S_ISDIR(os.stat(parent).st_mode) else os.fspath(parent)
    return None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is known to lead to a directory; symbolic links are followed."""
    return os.path.isdir(path)


def is_same_path(path: str, other: str) -> bool:
    """Return True if two paths, or URLs, are the same; symbolic links are followed."""
    return os.path.realpath(path) == os.path.realpath(other)


def last_name(path: str | os.PathLike[str]) -> str:
    """Return the last component of a path, or of a URL; symbolic links are followed."""
    return os.path.basename(os.path.realpath(path))


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path; `..` is kept, because it depends on symbolic links."""
    return os.path.join(os.getcwd(), path) if not os.path.isabs(path) else os.fspath(path)


def is_empty_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a path leads to an empty file, without opening it; links are followed."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def is_link(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a symbolic link, also a broken one."""
    return os.path.islink(path)


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Return True if a path exists, also as a broken symbolic link.

    Raises PermissionError if the parent directory may not be searched.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:  # a parent is a circular link
            return False
        raise
    return True
