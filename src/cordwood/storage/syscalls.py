"""The system calls that modify a file system, behind one object that tests can override.

All modifications by a save go through this module, so a test can count the calls, make the Nth one
fail, or end the process at it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cordwood.io.stale_handles import retry_stale


class SystemCalls:
    """The real system calls, one per method."""

    open = staticmethod(os.open)  # a builtin function, without Python code: see `OpenDescriptor`
    close = staticmethod(os.close)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def fallocate(self, fd: int, size_bytes: int) -> None:
        """Reserve space with the system call fallocate; the emulation of glibc writes zeros."""
        call = _c_function("fallocate", _INT, _INT, _OFF_T, _OFF_T)
        while call(fd, 0, 0, size_bytes) != 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str, folder: int | None = None) -> None:
        """Remove a file or link; `folder` is an open directory that `path` is relative to."""
        os.unlink(path, dir_fd=folder)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str, folder: int | None = None) -> None:
        os.rmdir(path, dir_fd=folder)

    def chmod(self, path: str | int, mode: int) -> None:
        """Set the permission bits of a path, or of a descriptor."""
        os.chmod(path, mode)

    def chown(self, fd: int, group: int) -> None:
        """Set the group of an open file or directory."""
        os.chown(fd, -1, group)

    def set_attribute(self, fd: int, name: str, value: bytes | None) -> None:
        """Set or, with None, remove an extended attribute of an open file or directory."""
        if value is None:
            os.removexattr(fd, name)
        else:
            os.setxattr(fd, name, value)

    def link(self, source: str, target: str) -> None:
        """Create a hard link to a file, or to a symlink itself."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, path)

    def exchange(self, one: str, other: str) -> None:
        """Exchange two paths atomically: renameat2(2) with RENAME_EXCHANGE."""
        _rename(one, other, _EXCHANGE)

    def rename_to_free_name(self, source: str, target: str) -> None:
        """Rename unless the target exists (EEXIST): renameat2(2) with RENAME_NOREPLACE."""
        _rename(source, target, _NO_REPLACE)

    def start_writeback(self, fd: int, offset: int, length: int) -> None:
        """Ask the kernel to start writing a range to the disk; a hint, which cannot fail."""
        with suppress(OSError):
            _c_function("sync_file_range", _INT, _OFF_T, _OFF_T, _UNSIGNED)(
                fd, offset, length, _WRITE
            )


_AT_FDCWD = -100
_NO_REPLACE = 1  # RENAME_NOREPLACE
_EXCHANGE = 2  # RENAME_EXCHANGE
_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_INT, _UNSIGNED, _PATH, _OFF_T = ctypes.c_int, ctypes.c_uint, ctypes.c_char_p, ctypes.c_int64


def _rename(source: str, target: str, flags: int) -> None:
    call = _c_function("renameat2", _INT, _PATH, _INT, _PATH, _UNSIGNED)
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, target)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, with as many calls as necessary. Raises OSError."""
    calls = current()
    while len(data):
        count = calls.pwrite(fd, data, offset)
        if count <= 0:
            raise OSError(errno.EIO, "the file takes no more bytes")
        data, offset = data[count:], offset + count


@contextmanager
def opened_fd(path: str, flags: int, *, mode: int = 0o666) -> Iterator[int]:
    """Open a file in the block."""
    fd = open_fd(path, flags, mode=mode)
    try:
        yield fd
    finally:
        close_quietly(fd)


@contextmanager
def open_directory_fd(path: str) -> Iterator[int]:
    """Open a directory in the block. Raises OSError, also for a symbolic link to a directory."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = retry_stale(lambda: os.open(path, flags))
    try:
        yield fd
    finally:
        os.close(fd)


def open_fd(path: str, flags: int, *, mode: int = 0o666, folder: int | None = None) -> int:
    """Open a file; return the descriptor."""
    if folder is not None:
        return retry_stale(lambda: os.open(path, flags, mode, dir_fd=folder))
    return retry_stale(lambda: current().open(path, flags, mode))


def close_quietly(fd: int) -> None:
    """Close a descriptor; ignore errors, which fsync has already reported for what was written."""
    with suppress(OSError):
        current().close(fd)


@functools.cache
def _c_function(name: str, *argument_types: Any) -> Callable[..., int]:
    """Return a function of the C library whose result is an int. Raises OSError (ENOSYS)."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError) as e:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from e
    call.argtypes = argument_types
    call.restype = ctypes.c_int
    result: Callable[..., int] = call
    return result


_current = SystemCalls()


def current() -> SystemCalls:
    """Return the system calls in use."""
    return _current


@contextmanager
def override(system: SystemCalls) -> Iterator[None]:
    """Use `system` in this whole process until the block ends."""
    global _current
    before = _current
    _current = system
    try:
        yield
    finally:
        _current = before
