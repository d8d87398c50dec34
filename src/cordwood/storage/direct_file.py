"""A file that is written past the page cache (O_DIRECT), where the file system supports that."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from cordwood.io.memory.buffers import PAGE_BYTES
from cordwood.storage import syscalls
from cordwood.storage.syscalls import close_quietly, open_fd, write_all

_DIRECT_FLAGS = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC

_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class DirectFile:
    """A file that is open for writing, and optionally a second time with O_DIRECT.

    What is written past the page cache takes no memory there, and is written to the disk once.

    Args:
        path: the path of the file.
        fd: its descriptor for writing through the page cache.
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._direct_fd = -1  # the descriptor with O_DIRECT, if any

    @property
    def is_direct(self) -> bool:
        """True if it is open with O_DIRECT."""
        return self._direct_fd >= 0

    def open_direct(self) -> None:
        """Write past the page cache until `close_direct`, if the file system supports it."""
        try:
            self._direct_fd = open_fd(self._path, _DIRECT_FLAGS)
        except OSError as e:
            if e.errno not in _NO_DIRECT:
                raise

    def close_direct(self) -> None:
        fd, self._direct_fd = self._direct_fd, -1
        if fd >= 0:
            close_quietly(fd)

    def reserve(self, size_bytes: int) -> None:
        """Reserve the space, so that a full disk is noticed before anything is written."""
        try:
            syscalls.current().fallocate(self._fd, size_bytes)
        except OSError as e:
            if e.errno not in _NO_FALLOCATE:
                raise

    def start_writeback(self, offset: int, length: int) -> None:
        """Tell the kernel to begin writing back what went through the page cache."""
        with suppress(OSError):  # fsync will report the error
            syscalls.current().start_writeback(self._fd, offset, length)

    def write(self, unit: memoryview, offset: int) -> None:
        """Write all of `unit`. For direct I/O its memory and the offset must be page-aligned.

        A partial last page goes through the page cache.
        """
        whole = len(unit) // PAGE_BYTES * PAGE_BYTES if self.is_direct else 0
        done = 0
        try:
            while done < whole:
                count = syscalls.current().pwrite(self._direct_fd, unit[done:whole], offset + done)
                if count <= 0:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                done += count
                if count % PAGE_BYTES:  # a short write within a page: the page cache takes the rest
                    break
        except OSError as e:
            if e.errno not in _NO_DIRECT:
                raise
        write_all(self._fd, unit[done:], offset + done)
