"""Advisory locks on the files that a save writes or links, by which others know them as in use."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import StorageError
from cordwood.storage import syscalls
from cordwood.storage.syscalls import close_quietly, open_fd
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop
from cordwood.threads.wait_logger import WaitLogger

# The errors for a file that was removed, also by another machine while it was open.
GONE_ERRORS = (errno.ENOENT, errno.ESTALE)
# What flock(2) says where there are none.
NO_LOCK_ERRORS = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)
_POLL_SECONDS = 0.02
_WAIT_SECONDS = 1.0  # for the lock of a file that is linked
_UNKNOWN_HOLDER = "another process, perhaps of another machine,"
LOCK_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def lock(fd: int, operation: int = fcntl.LOCK_EX, *, path: str = "") -> None:
    """Lock an open file; without effect if its file system has no locks. Raises OSError.

    Args:
        fd: the file.
        operation: the operation of flock(2).
        path: the path of the file. If the file system has no locks, a warning is logged, once for
            all directories with the same parent.
    """
    try:
        syscalls.current().flock(fd, operation)
    except OSError as e:
        if e.errno not in NO_LOCK_ERRORS:
            raise
        if path:
            warn_of_locks(
                os.path.dirname(path),
                f"file locks do not work here ({os.strerror(e.errno)}): two saves of one "
                "directory at the same time may lose one of the two, also of different prefixes; "
                "have one process save at a time, or save to another file system",
            )


def wait_and_lock(
    fd: int,
    path: str,
    operation: int = fcntl.LOCK_EX,
    *,
    timeout_seconds: float | None = None,
) -> None:
    """Wait until an open file can be locked, and lock it, as `lock` does.

    A wait of 10 s or more is logged, with the process that holds the lock.

    Args:
        fd: the file.
        path: the path of the file, for messages.
        operation: LOCK_EX or LOCK_SH.
        timeout_seconds: the longest wait; None: no limit.

    Raises OSError; StorageError after the timeout (ETIMEDOUT); and what `check_stop` raises.
    """
    wait = LockWait(path, timeout_seconds)
    while True:
        try:
            lock(fd, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            wait.pause()
    wait.end()


class LockWait:
    """One wait for a lock, with a timeout, a log message, and a stop check."""

    def __init__(self, path: str, timeout_seconds: float | None) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._waiting = WaitLogger(
            lambda: f"the lock {path}, which {describe_holder(path)} holds",
            hint="it goes on when that is done or ended",
        )

    def pause(self) -> None:
        """Sleep for a moment. Raises what `check_stop` raises, and StorageError at the timeout."""
        check_stop()
        self._waiting.tick()
        seconds = self._timeout_seconds
        if seconds is not None and self._waiting.seconds > seconds:
            raise StorageError(
                errno.ETIMEDOUT,
                f"waited {seconds:g} s for this lock, which {describe_holder(self._path)} holds: "
                "end that if it hangs, then try again; what was there before is untouched",
                self._path,
            )
        time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        self._waiting.end()


def describe_holder(path: str) -> str:
    """Return a description of the process that holds the lock of a file, if this machine knows."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
        status = os.stat(path)
    except OSError:
        return _UNKNOWN_HOLDER
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 3731 fe:00:2146611 0 EOF; of a waiting process: "1: -> FLOCK"
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or not fields[4].isdigit():
            continue
        where, _, inode = fields[5].rpartition(":")
        # On btrfs and overlayfs stat(2) reports another device, with the major number 0.
        if inode == str(status.st_ino) and (where == device or where.startswith("00:")):
            return _describe_process(int(fields[4]))
    return _UNKNOWN_HOLDER


def _describe_process(process: int) -> str:
    if process == os.getpid():
        return "another thread of this process"
    try:
        with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    except OSError:
        return f"process {process}"
    name, state = status.get("Name", "").strip(), status.get("State", "").strip()
    return f"process {process} ({name}{', stopped' if state.startswith('T') else ''})"


_warned: set[tuple[str, str]] = set()


def warn_of_locks(folder: str, text: str) -> None:
    """Log a warning about a directory, once for all with the same parent: the steps of a run."""
    key = (os.path.dirname(folder), text)
    if key not in _warned:
        _warned.add(key)
        log.warning("%s: %s", folder, text)


def unlock(fd: int) -> None:
    """Unlock and close a file; closing alone does not unlock a descriptor that a fork copied."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    close_quietly(fd)


@contextmanager
def opened_for_lock(path: str, flags: int, *, folder: int | None = None) -> Iterator[int]:
    """Open a file in the block, at whose end it is unlocked and closed."""
    fd = open_fd(path, flags, folder=folder)
    try:
        yield fd
    finally:
        unlock(fd)


def is_open_file_at(fd: int, path: str) -> bool:
    """Return True if a path currently leads to the given open file."""
    try:
        return is_same_file(fd, lambda: os.lstat(path))
    except OSError as e:
        if e.errno not in GONE_ERRORS:
            raise
        return False


def is_same_file(fd: int, look: Callable[[], os.stat_result]) -> bool:
    """Return True if an open file is the file whose status `look` returns.

    On some file systems (FUSE) the inode number changes with each call of stat(2). There only the
    type is compared: otherwise no lock could ever be taken, and no old directory be removed.
    """
    before = os.fstat(fd)
    status = look()
    after = os.fstat(fd)
    if os.path.samestat(status, before) or os.path.samestat(status, after):
        return True
    return before.st_ino != after.st_ino and stat.S_IFMT(status.st_mode) == stat.S_IFMT(
        after.st_mode
    )


def wait_for_lock(path: str) -> None:
    """Wait until the lock `path` is free. Changes nothing. Raises what `check_stop` raises."""
    # An error: the lock is free, or its state is unknown.
    with suppress(OSError), opened_for_lock(path, os.O_RDONLY | LOCK_FLAGS) as fd:
        wait_and_lock(fd, path, fcntl.LOCK_SH)


def is_locked(path: str, *, even_shared: bool) -> bool:
    """Return True if the lock of a file is known to be held. Changes nothing.

    Args:
        path: the file.
        even_shared: count a shared lock, too.
    """
    kind = fcntl.LOCK_EX if even_shared else fcntl.LOCK_SH
    try:
        with opened_for_lock(path, os.O_RDONLY | LOCK_FLAGS) as fd:
            syscalls.current().flock(fd, kind | fcntl.LOCK_NB)
    except OSError as e:
        return isinstance(e, BlockingIOError)
    return False


def remove_unlocked(
    path: str, *, folder: int | None = None, dry_run: bool = False, without_locks: bool = False
) -> bool:
    """Remove a file unless a running save holds its lock; return True if it could be removed.

    Args:
        path: the file.
        folder: the descriptor of a directory that `path` is relative to.
        dry_run: remove nothing.
        without_locks: remove it also where the file system has no locks.
    """
    calls = syscalls.current()
    try:
        with opened_for_lock(path, os.O_RDWR | LOCK_FLAGS, folder=folder) as fd:
            take = lock if without_locks else calls.flock
            take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not dry_run:
                calls.unlink(path, folder)
    except OSError:
        return False  # already removed, another user's, locked by a running save, or no locks here
    return True


def link_under_shared_lock(source: str, target: str) -> int | None:
    """Link a file to a new name, under a shared lock; a process that removes files checks for it.

    Args:
        source: the file; not a symlink.
        target: the new name. It may already be a link to the same file.

    Returns:
        The descriptor that holds the lock, if `target` is that file now; else None.

    Raises OSError as the system does, and what `check_stop` raises.
    """
    fd = open_fd(source, os.O_RDONLY | LOCK_FLAGS)
    linked = False
    try:
        # Not for long: another process checks if it is in use, or its save just ends.
        wait_and_lock(fd, source, fcntl.LOCK_SH, timeout_seconds=_WAIT_SECONDS)
        with suppress(FileExistsError):  # from a save of this directory that died, or still runs
            syscalls.current().link(source, target)
        linked = is_open_file_at(fd, target)
    except StorageError:
        pass  # another process holds the lock for long
    except OSError as e:
        if e.errno != errno.ESTALE:
            raise
        # Another machine has removed the file.
    finally:
        if not linked:
            unlock(fd)
    return fd if linked else None
