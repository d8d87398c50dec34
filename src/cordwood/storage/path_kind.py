"""What lies at a path."""

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
    """Symbolic links are followed.

    Raises StorageError for links that lead in a circle and for names that nothing can have;
    PermissionError. Each names the path.
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
    """What stands where a directory above a path has to be, and is none; None where nothing does,
    as far as can be told.
    """
    for parent in Path(path).parents:
        with suppress(OSError):
            return None if stat.S_ISDIR(os.stat(parent).st_mode) else os.fspath(parent)
    return None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a directory lies at a path, as far as can be told; symbolic links are followed."""
    return os.path.isdir(path)


def is_same_path(path: str, other: str) -> bool:
    """Whether two paths, or URLs, lead to one place; symbolic links are followed."""
    return os.path.realpath(path) == os.path.realpath(other)


def last_name(path: str | os.PathLike[str]) -> str:
    """Return the last name of a path, or of a URL; symbolic links are followed."""
    return os.path.basename(os.path.realpath(path))


def absolute_path(path: str | os.PathLike[str]) -> str:
    """A path that means the same place wherever the process goes; `..` stays, for links."""
    return os.path.join(os.getcwd(), path) if not os.path.isabs(path) else os.fspath(path)


def is_empty_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file without bytes lies at a path, which is not opened; links are followed."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def is_link(path: str | os.PathLike[str]) -> bool:
    """Whether a symbolic link lies at a path, wherever it leads."""
    return os.path.islink(path)


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything of that name, a broken symbolic link included.

    Raises PermissionError where that cannot be seen.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:  # behind a link that leads back to itself
            return False
        raise
    return True
