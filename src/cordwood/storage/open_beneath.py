"""The opening of a file below a directory, which follows no symbolic link (openat2)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable

_SYS_OPENAT2 = 437  # the same on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_UNAVAILABLE = (errno.ENOSYS, errno.EPERM, errno.EINVAL)  # EPERM: a sandbox that forbids it
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class _OpenHow(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


def open_beneath(folder: int, path: str, *, directory: bool = False) -> int:
    """Open `path`, relative to an open directory, for reading; return the descriptor.

    A FIFO is opened without waiting for a writer.

    Raises:
        OSError: ELOOP if a component is a symlink; ENOENT, ENOTDIR and so on, as open(2) does.
        ValueError: a component is '', '.' or '..', or contains a null character.
    """
    steps = path.split("/")
    if "\0" in path or not all(step and step not in (".", "..") for step in steps):
        raise ValueError(f"{path!r} is no path of plain names")
    flags = _FLAGS | (os.O_DIRECTORY if directory else 0)
    call = _openat2()
    if call is not None:
        fd = call(folder, os.fsencode(path), flags)
        if fd >= 0:
            return fd
        if -fd not in _UNAVAILABLE:
            raise OSError(-fd, os.strerror(-fd), path)
    return _walk(folder, steps, flags)


def _walk(folder: int, steps: list[str], flags: int) -> int:
    """Open the path component by component, for kernels without openat2(2)."""
    at = folder
    try:
        for step in steps[:-1]:
            following = _step(at, step, _FLAGS | os.O_DIRECTORY)
            if at != folder:
                os.close(at)
            at = following
        return _step(at, steps[-1], flags)
    finally:
        if at != folder:
            os.close(at)


def _step(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as e:  # also for a symlink, with O_DIRECTORY
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from e
        raise


@functools.cache
def _openat2() -> Callable[[int, bytes, int], int] | None:
    """Return a call of openat2(2) that follows no symlinks; on failure it returns -errno."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    syscall.restype = ctypes.c_long
    resolve = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS

    def call(folder: int, path: bytes, flags: int) -> int:
        how = _OpenHow(flags, 0, resolve)
        fd = syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        return int(fd) if fd >= 0 else -ctypes.get_errno()

    return call
