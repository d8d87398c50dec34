"""A temporary file without a name (O_TMPFILE), for data that is too large for memory.

It is in no directory, so nothing has to be removed: its space is freed when it is closed, or when
the process ends in any way. It is flushed once although it does not outlive the process: only then
a disk reports errors or a lack of space behind the page cache; otherwise zeros could be read back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import StorageError
from cordwood.io.open_files import OpenFile
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import remove_stale_temporaries
from cordwood.storage.direct_file import DirectFile
from cordwood.storage.paths import temporary_path
from cordwood.storage.syscalls import write_all

_FLAGS = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC  # O_EXCL: it cannot be given a name later
# The errors of file systems without such files; the last two come from old kernels.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EINVAL, errno.EISDIR, errno.ENOENT)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnnamedTemporaryFile(OpenFile):
    """A temporary file for appending, and reading at any offset. Its creator closes it.

    If the file system does not support files without a name, it has a name for a moment; if the
    process is killed just then, an empty file is left, which the next file of that name removes.

    Args:
        folder: a directory on the disk that holds the file.
        name: the name of the file that the data comes from, for messages.
        purpose: the contents of the file in words, for messages.

    Raises StorageError if the disk fails or is full, or `folder` is no directory (errno kept); with
    the name, the directory, and the required size. Never FileNotFoundError, which would mean that
    the source of the data does not exist.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str,
        *,
        purpose: str = "what it decompresses to",
    ) -> None:
        super().__init__(name)
        self._purpose = purpose
        self._folder = os.fspath(folder)
        self._required_bytes = 0
        self._blocks: DirectFile | None = None  # once blocks are to be written
        try:
            with self._explaining("creating"):
                try:
                    self._open(self._folder, _FLAGS | os.O_TMPFILE)
                except OSError as e:
                    if e.errno not in _NO_UNNAMED:
                        raise
                    self._open_and_unlink()
        except BaseException:
            self.close()  # at once, not when the traceback is dropped
            raise

    def _open(self, path: str, flags: int) -> None:
        # As `OpenDescriptor.open`, by the system calls of a save.
        self.opened.extend(map(syscalls.current().open, (path,), (flags,), (0o666,)))

    def _open_and_unlink(self) -> None:
        name = os.path.basename(self.name)
        remove_stale_temporaries(os.path.realpath(self._folder), name)
        path = temporary_path(self._folder, name)
        try:
            self._open(path, _FLAGS | os.O_CREAT)
        finally:
            with suppress(FileNotFoundError):  # not created, or another process has removed it
                syscalls.current().unlink(path)

    def reserve(self, size_bytes: int) -> None:
        """Reserve space for that many more bytes, so that a full disk is noticed early."""
        self._required_bytes = self.size_bytes + size_bytes
        with self._explaining("filling"):
            DirectFile(self.name, self.opened[0]).reserve(self._required_bytes)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        stop = self.size_bytes + len(data)
        self._required_bytes = max(self._required_bytes, stop)
        with self._explaining("filling"):
            write_all(self.opened[0], memoryview(data), self.size_bytes)
        self.size_bytes = stop

    def reserve_blocks(self, size_bytes: int) -> None:
        """Reserve space for blocks, which `write_block` writes past the page cache if it can."""
        self.reserve(size_bytes)
        self._blocks = DirectFile(f"/proc/self/fd/{self.opened[0]}", self.opened[0])
        with suppress(OSError):
            self._blocks.open_direct()

    def write_block(self, data: memoryview, offset: int) -> None:
        """Write bytes at any place of the space for blocks; several threads may do so."""
        assert self._blocks is not None
        with self._explaining("filling"):
            self._blocks.write(data, offset)

    def finish(self) -> None:
        """Flush the file after its last bytes."""
        with self._explaining("filling"):
            self._close_direct()
            syscalls.current().fsync(self.opened[0])
            self.size_bytes = max(self.size_bytes, self._required_bytes)

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._close_direct()
        super().close()

    def _close_direct(self) -> None:
        if self._blocks is not None:
            self._blocks.close_direct()

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            code = e.errno or errno.EIO
            size = f", at least {self._required_bytes} bytes" if self._required_bytes else ""
            advice = "pass scratch= (--scratch), another directory"
            if code in _FULL:
                advice = f"make room there, or {advice} on a disk that has it"
            message = (
                f"{os.strerror(code)} while {doing} a temporary file in {self._folder} for "
                f"{self._purpose}{size}; {advice}"
            )
            raise StorageError(code, message, self.name) from e


def scratch_directory(path: str | os.PathLike[str]) -> str:
    """Return a directory for temporary files on the disk of a local path."""
    folder = os.path.realpath(path)  # itself: its parent may be another disk, or not writable
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)  # the first that exists
    return folder
