"""Advisory locks: of what a save writes, and of a place that only one may change at a time.

A place is locked by a regular file beside what is changed, which is made, locked, and removed
again. Not by its directory: network file systems that pass locks of files on to other machines
(NFS, Lustre) keep those of directories to themselves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.engine import system
from cordwood.engine.apart import Check, go_on
from cordwood.engine.system import close_all, open_into

__all__ = ["is_at", "is_locked", "lock", "locked", "remove_unlocked", "unlock", "wait_for_lock"]

_NO_LOCKS = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)
_POLL_SECONDS = 0.02
_ATTEMPTS = 3  # to open a lock of another user, who may just remove it
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def lock(fd: int, operation: int = fcntl.LOCK_EX) -> None:
    """Lock a file that is open, as far as its file system has locks. Raises OSError."""
    try:
        system.current().flock(fd, operation)
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise


def unlock(opened: list[int]) -> None:
    """Unlock and close what is open; closing is not enough where a fork has copied it.

    No `suppress`, which is Python code: an interrupt in it would come before the call.
    """
    while opened:
        try:
            fcntl.flock(opened[-1], fcntl.LOCK_UN)
        except OSError:
            pass
        finally:
            try:  # noqa: SIM105
                system.current().close(opened.pop())
            except OSError:
                pass


def is_at(fd: int, path: str) -> bool:
    """Whether an open file is what lies at a path now."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: str, check: Check = go_on) -> Iterator[None]:
    """Hold the lock that the file `path` stands for: it must not exist for any other reason.

    Waits as long as it takes, calling `check` meanwhile: what that raises ends it. Raises OSError
    as open(2) and flock(2) do. Where a full disk has no room for the file, its directory is locked.
    """
    opened: list[int] = []
    mine = False
    try:
        while not mine:
            unlock(opened)
            if not _open_lock(opened, path):
                lock(opened[0])
                break
            try:
                lock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                check()
                time.sleep(_POLL_SECONDS)
                continue
            mine = _is_still_at(opened[0], path)  # or whoever had it has removed it
        yield
    finally:
        try:
            if mine:
                with suppress(OSError):  # whoever comes next does it
                    system.current().unlink(path)
        finally:
            unlock(opened)


def _open_lock(opened: list[int], path: str) -> bool:
    """Open the file of a lock, or make it; False where it is the directory that was opened."""
    for attempt in range(_ATTEMPTS):
        try:
            open_into(opened, path, os.O_RDWR | os.O_CREAT | _FLAGS)
            return True
        except PermissionError:  # another user's?
            with suppress(FileNotFoundError):
                open_into(opened, path, os.O_RDONLY | _FLAGS)
                return True
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            break
    open_into(opened, os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return False


def _is_still_at(fd: int, path: str) -> bool:
    """As `is_at`, asking anew: a network file system remembers what stat(2) said, not open(2)."""
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        return os.path.samestat(os.fstat(fd), os.fstat(opened[0]))
    except FileNotFoundError:
        return False
    finally:
        close_all(opened)


def wait_for_lock(path: str) -> None:
    """Wait while somebody holds the lock `path`. Changes nothing."""
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        lock(opened[0], fcntl.LOCK_SH)
    except OSError:
        pass  # nobody holds it, or that cannot be told
    finally:
        unlock(opened)


def is_locked(path: str, *, even_shared: bool) -> bool:
    """Whether somebody holds the lock of a file, as far as that can be told. Changes nothing.

    `even_shared`: or shares it with others.
    """
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        kind = fcntl.LOCK_EX if even_shared else fcntl.LOCK_SH
        system.current().flock(opened[0], kind | fcntl.LOCK_NB)
        return False
    except OSError as e:
        return isinstance(e, BlockingIOError)
    finally:
        unlock(opened)


def remove_unlocked(path: str, *, dry_run: bool = False, without_locks: bool = False) -> bool:
    """Remove a file unless a living save holds its lock; whether it could be removed.

    `without_locks`: also where the file system has no locks, and nobody can tell.
    """
    calls = system.current()
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDWR | _FLAGS)
        take = lock if without_locks else calls.flock
        take(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not dry_run:
            calls.unlink(path)
        return True
    except OSError:
        return False  # gone meanwhile, another user's, a live save's, or no locks here: not ours
    finally:
        unlock(opened)
