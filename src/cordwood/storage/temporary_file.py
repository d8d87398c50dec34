"""A file without a name: bytes that are too many for memory, on a disk for as long as it is open.

It is in no directory, so nothing has to be removed: its space is free again when it is closed,
or the process ends, however it does. Nobody wants it after that, but it is flushed once: a disk
that fails or fills up behind the page cache says so then, and else what is read could be zeros.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import StorageError
from cordwood.io.direct_io import DirectFile
from cordwood.storage import syscalls
from cordwood.storage.file_transaction import remove_stale_temporaries, temporary_path
from cordwood.storage.open_files import OpenFile
from cordwood.storage.syscalls import open_into, write_all

_FLAGS = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC  # O_EXCL: nobody gives it a name later
# Of file systems that have no such files; the last two are old kernels'.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EINVAL, errno.EISDIR, errno.ENOENT)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnnamedTemporaryFile(OpenFile):
    """Bytes that are appended, and read at any offset. Whoever makes it closes it.

    Where the file system has no files without a name, it has one for a moment; if the process is
    killed just then, an empty file is left, which the next of that name here removes.

    Args:
        folder: a directory on the disk where it is to lie.
        name: what the bytes come from, for messages.

    Raises StorageError where the disk fails or is full, or the directory is none (errno kept);
    with the name, the directory, and how much it takes. Never FileNotFoundError, which would say
    that what the bytes come from is not there.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        super().__init__(name)
        self._folder = os.fspath(folder)
        self._told_bytes = 0
        try:
            with self._explaining("creating"):
                self._open()
        except BaseException:
            self.close()  # not when a traceback lets go of it
            raise

    def _open(self) -> None:
        try:
            open_into(self.opened, self._folder, _FLAGS | os.O_TMPFILE)
        except OSError as e:
            if e.errno not in _NO_UNNAMED:
                raise
            self._open_and_unlink()

    def _open_and_unlink(self) -> None:
        name = os.path.basename(self.name)
        remove_stale_temporaries(os.path.realpath(self._folder), name)
        path = temporary_path(self._folder, name)
        try:
            open_into(self.opened, path, _FLAGS | os.O_CREAT)
        finally:
            with suppress(FileNotFoundError):  # it was not made, or another has just removed it
                syscalls.current().unlink(path)

    def reserve(self, size_bytes: int) -> None:
        """Claim room for so many bytes more: a full disk is found before they are made."""
        self._told_bytes = self.size_bytes + size_bytes
        with self._explaining("filling"):
            DirectFile(self.name, self.opened[0]).reserve(self._told_bytes)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        stop = self.size_bytes + len(data)
        self._told_bytes = max(self._told_bytes, stop)
        with self._explaining("filling"):
            write_all(self.opened[0], memoryview(data), self.size_bytes)
        self.size_bytes = stop

    def finish(self) -> None:
        """Say that all is there."""
        with self._explaining("filling"):
            syscalls.current().fsync(self.opened[0])

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            code = e.errno or errno.EIO
            size = f", at least {self._told_bytes} bytes" if self._told_bytes else ""
            advice = "pass scratch= (--scratch), another directory"
            if code in _FULL:
                advice = f"make room there, or {advice} on a disk that has it"
            message = (
                f"{os.strerror(code)} while {doing} a temporary file in {self._folder} for "
                f"what it decompresses to{size}; {advice}"
            )
            raise StorageError(code, message, self.name) from e


def scratch_directory(path: str | os.PathLike[str]) -> str:
    """The directory where what is saved at a local path comes into being: on the same disk."""
    target = os.path.realpath(path)
    if os.path.isdir(target):  # beside it may be another disk, or nobody may write
        return target
    folder = os.path.dirname(target)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)  # the next one is made in it
    return folder
