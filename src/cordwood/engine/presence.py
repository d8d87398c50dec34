"""What lies at a path."""

from __future__ import annotations

import errno
import os
import stat
from typing import Literal

from cordwood.errors import StorageError

__all__ = ["what_is_at"]

_WHY = {
    errno.ELOOP: "a symbolic link leads back to itself; expected a checkpoint",
    errno.ENAMETOOLONG: "longer than a name or a path can be; expected that of a checkpoint",
}


def what_is_at(
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
