"""Lock files: regular files that exclude other processes from the files beside them.

A lock file is created, locked, and removed again. The directory itself is not locked: network file
systems that share locks on files between machines (NFS, Lustre) do not share locks on directories.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import StorageError
from cordwood.storage import syscalls
from cordwood.storage.locks.file_locks import (
    GONE_ERRORS,
    LOCK_FLAGS,
    LockWait,
    is_same_file,
    lock,
    unlock,
    warn_of_locks,
)
from cordwood.storage.syscalls import open_fd, opened_fd

_ATTEMPTS = 3  # to open the lock file of another user, which may just be removed
_MAX_ROUNDS = 100  # of locking a file that turns out to be another one each time


@contextmanager
def locked(path: str, *, timeout_seconds: float | None = None) -> Iterator[None]:
    """Hold the lock file `path` during the block. The file must have no other purpose.

    If a full disk has no room for the file, its directory is locked. If the file system has no
    locks, or the inode number of the file changes with each call, nothing is locked, and a warning
    is logged.

    Args:
        path: the lock file; created, and removed at the end.
        timeout_seconds: the longest wait; None: no limit. After 10 s the wait is logged.

    Raises OSError as open(2) and flock(2) do; StorageError after the timeout (ETIMEDOUT); and what
    `check_stop` raises.
    """
    fd, is_file = _take_lock_file(path, timeout_seconds)
    try:
        try:
            yield
        finally:
            if is_file:
                with suppress(OSError):  # the next holder removes it
                    syscalls.current().unlink(path)
    finally:
        unlock(fd)


def _take_lock_file(path: str, timeout_seconds: float | None) -> tuple[int, bool]:
    """Wait for a lock file; return its descriptor, and False for that of its directory."""
    wait = LockWait(path, timeout_seconds)
    rounds = 0
    while True:
        fd, is_file = _open_lock(path)
        blocked = holds_lock = False
        try:
            lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, path=path)
            rounds += 1
            # Its last holder may have just removed it.
            holds_lock = not is_file or _is_still_at(fd, path)
            if not holds_lock and rounds > _MAX_ROUNDS:
                warn_of_locks(
                    os.path.dirname(path),
                    "a file has another inode number at each look, so locks do not work here: two "
                    "saves of one directory at the same time may lose one of the two",
                )
                holds_lock = True
        except BlockingIOError:
            blocked = True
        except OSError as e:
            if e.errno not in GONE_ERRORS or rounds > _MAX_ROUNDS:
                raise
            rounds += 1  # its last holder, on another machine, has just removed it
        finally:
            if not holds_lock:
                unlock(fd)
        if holds_lock:
            wait.end()
            return fd, is_file
        if blocked or rounds > _ATTEMPTS:
            wait.pause()


class LockedOutError(StorageError, PermissionError):
    """The error of a lock file that this user may not open."""


def _open_lock(path: str) -> tuple[int, bool]:
    """Open or create a lock file; return False if its directory was opened in its place."""
    for attempt in range(_ATTEMPTS):
        try:
            fd = open_fd(path, os.O_RDWR | os.O_CREAT | LOCK_FLAGS)
            _let_others_open(fd, os.path.dirname(path))
            return fd, True
        except PermissionError as e:  # another user's?
            try:
                return open_fd(path, os.O_RDONLY | LOCK_FLAGS), True
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise e from None
            except PermissionError:
                raise _locked_out(path) from e
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            break
    return open_fd(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), False


def _let_others_open(fd: int, folder: str) -> None:
    """Let those who may write in a directory open the lock file that this process has made there.

    The file is empty, so it gives nothing away. If a killed save leaves it, others can go on.
    """
    with suppress(OSError):
        status, above = os.fstat(fd), os.stat(folder)
        if status.st_uid != os.geteuid():
            return
        writers = stat.S_IMODE(above.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
        needed = writers << 1  # their permission to read
        if writers & stat.S_IWGRP and status.st_gid != above.st_gid:
            with suppress(OSError):  # this user is not in that group
                syscalls.current().chown(fd, above.st_gid)
        if needed & ~status.st_mode:
            syscalls.current().chmod(fd, stat.S_IMODE(status.st_mode) | needed)


def _locked_out(path: str) -> OSError:
    """Return the error for a lock file that this user may not open."""
    try:
        status = os.lstat(path)
    except OSError as e:
        return e
    return LockedOutError(
        errno.EACCES,
        f"this lock file belongs to the user {status.st_uid}, with the mode "
        f"{stat.S_IMODE(status.st_mode):o}, and cannot be opened: a killed save has left it, or a "
        f"save is running. If no save of that user runs here, remove it: rm {shlex.quote(path)}",
        path,
    )


def _is_still_at(fd: int, path: str) -> bool:
    """Return what `is_open_file_at` does, but open the path again.

    A network file system caches the answer of stat(2), but not that of open(2).
    """
    try:
        with opened_fd(path, os.O_RDONLY | LOCK_FLAGS) as current_fd:
            return is_same_file(fd, lambda: os.fstat(current_fd))
    except OSError as e:
        if e.errno not in GONE_ERRORS:
            raise
        return False
