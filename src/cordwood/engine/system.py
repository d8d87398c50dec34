"""The system calls that change what lies on disk, behind one object that tests can replace.

Everything that a save does to a file system goes through here, so a test can count the calls,
make the Nth one fail, or end the process at it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["System", "current", "replaced"]


class System:
    """The real calls, one a method."""

    open = staticmethod(os.open)  # these two themselves: see commit._open_into
    close = staticmethod(os.close)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def fallocate(self, fd: int, size_bytes: int) -> None:
        """fallocate(2), never glibc's emulation, which would write the zeros itself."""
        call = _fallocate()
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        while call(fd, 0, 0, size_bytes) != 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    call.restype = ctypes.c_int
    result: Callable[[int, int, int, int], int] = call
    return result


_current = System()


def current() -> System:
    """The calls in use."""
    return _current


@contextmanager
def replaced(system: System) -> Iterator[None]:
    """Use `system` in this whole process until the block ends."""
    global _current
    before = _current
    _current = system
    try:
        yield
    finally:
        _current = before
