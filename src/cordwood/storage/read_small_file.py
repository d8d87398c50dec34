"""Reading of small files whole: indexes and records."""

from __future__ import annotations

import errno
import os
import stat

from cordwood.errors import CorruptionError, LimitError
from cordwood.io.open_files import OpenDescriptor, read_error, with_file_name
from cordwood.io.stale_handles import retry_stale
from cordwood.storage import syscalls

_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_limited(fd: int, name: str, *, limit_bytes: int) -> bytes:
    """Return all bytes of an open file; of one that grows, perhaps one more.

    Raises CorruptionError unless it is a regular file, LimitError for a larger one, and OSError
    with the name of the file.
    """
    try:
        size = regular_file_size(fd, name)
        if size > limit_bytes:
            raise LimitError(f"{name}: {size} bytes; expected at most {limit_bytes}")
        data = os.pread(fd, size + 1, 0)
        while len(data) < size and (more := os.pread(fd, size + 1 - len(data), len(data))):
            data += more
    except OSError as e:
        raise read_error(e, name) from e
    return data


def regular_file_size(fd: int, name: str) -> int:
    """Return the size of an open file. Raises CorruptionError unless it is a regular file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptionError(
            f"{name}: expected a regular file, found a directory, pipe, socket or device"
        )
    return status.st_size


def read_small_file(
    path: str, name: str, *, limit_bytes: int, folder: int | None = None
) -> bytes | None:
    """Return all bytes of a file in the directory of a checkpoint; None if there is no file.

    Args:
        path: the directory.
        name: the file.
        limit_bytes: the most bytes that it may have.
        folder: a descriptor of the directory, to read from in place of `path`.

    Raises LimitError for a larger file, CorruptionError for a symbolic link, and OSError with the
    name of the file.
    """
    where = f"{path}/{name}"

    def read() -> bytes:
        with OpenDescriptor(where) as file:
            call = syscalls.current().open  # a save reads what is there
            file.open(where if folder is None else name, _FILE, folder=folder, call=call)
            return read_limited(file.fd, where, limit_bytes=limit_bytes)

    try:
        return retry_stale(read)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise symlink_error(where) from e
        raise with_file_name(e, where) from e


def symlink_error(where: str) -> CorruptionError:
    """Return the error for a file that is a symbolic link, or lies behind one."""
    return CorruptionError(
        f"{where} is, or lies behind, a symbolic link: expected a regular file of the "
        "checkpoint's own; copy the checkpoint with links followed (cp -rL)"
    )
