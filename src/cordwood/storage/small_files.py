"""Reading of the small files of a checkpoint: its index and its sidecar files."""

from __future__ import annotations

import errno
import os

from cordwood.errors import CorruptionError, LimitError
from cordwood.storage import syscalls
from cordwood.storage.directory_reader import regular_file_size
from cordwood.storage.open_files import with_file_name
from cordwood.storage.syscalls import open_into

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
    calls = syscalls.current()
    where = f"{path}/{name}"
    opened: list[int] = []
    try:
        source = where if folder is None else name
        open_into(opened, source, _FLAGS, folder=folder)
        size = regular_file_size(opened[0], where)
        if size > limit_bytes:
            raise LimitError(f"{where}: {size} bytes; expected at most {limit_bytes}")
        data = b""
        while more := os.pread(opened[0], size + 1 - len(data), len(data)):
            data += more
        return data
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno != errno.ELOOP:
            raise with_file_name(e, where) from e
        raise CorruptionError(
            f"{where} is, or lies behind, a symbolic link: expected a regular file of the "
            "checkpoint's own; copy the checkpoint with links followed (cp -rL)"
        ) from e
    finally:
        if opened:
            try:  # noqa: SIM105  (no `suppress`: an interrupt in its code could prevent the call)
                calls.close(opened[0])
            except OSError:
                pass
