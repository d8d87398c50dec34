"""Advisory locks: of what a save writes, and of a place that only one may change at a time.

A place is locked by a regular file beside what is changed, which is made, locked, and removed
again. Not by its directory: network file systems that pass locks of files on to other machines
(NFS, Lustre) keep those of directories to themselves.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import StorageError
from cordwood.io.uninterruptible import StopCheck, never_stop
from cordwood.processes.wait_log import WaitLogger
from cordwood.storage import syscalls
from cordwood.storage.syscalls import close_all, open_into

_log = logging.getLogger("cordwood")

NO_LOCK_ERRORS = (
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.ENOLCK,
)  # what flock(2) says where there are none
_POLL_SECONDS = 0.02
_ATTEMPTS = 3  # to open a lock of another user, who may just remove it
_NOBODY_KNOWN = "another process, perhaps of another machine,"
_MAX_ROUNDS = 100  # of taking a lock whose file is found to be another one each time
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def lock(fd: int, operation: int = fcntl.LOCK_EX, *, path: str = "") -> None:
    """Lock a file that is open, as far as its file system has locks. Raises OSError.

    Args:
        fd: the file.
        operation: as flock(2) has it.
        path: of the file. Where the file system has no locks, that is logged as a warning, once
            for a directory and those beside it.
    """
    try:
        syscalls.current().flock(fd, operation)
    except OSError as e:
        if e.errno not in NO_LOCK_ERRORS:
            raise
        if path:
            _warn(
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
    check: StopCheck = never_stop,
    timeout_seconds: float | None = None,
) -> None:
    """Lock a file that is open once nobody else holds its lock, as `lock`.

    A wait of 10 s or more is logged, with the holder.

    Args:
        fd: the file.
        path: of the file, for messages.
        operation: LOCK_EX or LOCK_SH.
        check: called while it waits; what it raises ends the wait.
        timeout_seconds: how long to wait; None: for ever.

    Raises OSError; StorageError where the time is over (ETIMEDOUT).
    """
    wait = _LockWait(path, check, timeout_seconds)
    while True:
        try:
            lock(fd, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            wait.pause()
    wait.end()


class _LockWait:
    """One wait for a lock: bounded, reported, and ended by what `check` raises."""

    def __init__(self, path: str, check: StopCheck, timeout_seconds: float | None) -> None:
        self._path = path
        self._check = check
        self._timeout_seconds = timeout_seconds
        self._waiting = WaitLogger(
            lambda: f"the lock {path}, which {describe_holder(path)} holds",
            hint="it goes on when that is done or ended",
        )

    def pause(self) -> None:
        """Sleep for a moment. Raises what `check` does, and StorageError at the timeout."""
        self._check()
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
    """Return who holds the lock of a file, in words, as far as this machine knows."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
        status = os.stat(path)
    except OSError:
        return _NOBODY_KNOWN
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 3731 fe:00:2146611 0 EOF; of one that waits, "1: -> FLOCK ..."
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or not fields[4].isdigit():
            continue
        where, _, inode = fields[5].rpartition(":")
        # Some file systems (btrfs, overlayfs) give stat(2) another device, with the major number 0.
        if inode == str(status.st_ino) and (where == device or where.startswith("00:")):
            return _describe_process(int(fields[4]))
    return _NOBODY_KNOWN


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


def _warn(folder: str, text: str) -> None:
    """Log a warning of a directory, once for all that lie beside it: the steps of a run."""
    key = (os.path.dirname(folder), text)
    if key not in _warned:
        _warned.add(key)
        _log.warning("%s: %s", folder, text)


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
                syscalls.current().close(opened.pop())
            except OSError:
                pass


def is_open_file_at(fd: int, path: str) -> bool:
    """Return whether an open file is what lies at a path now."""
    try:
        return _is_same(fd, lambda: os.lstat(path))
    except FileNotFoundError:
        return False


def _is_same(fd: int, look: Callable[[], os.stat_result]) -> bool:
    """Return whether an open file is what `look` finds.

    On some file systems (FUSE) the inode number changes from look to look. There only the type
    is compared: else no lock could ever be taken, and no old directory be removed.
    """
    before = os.fstat(fd)
    found = look()
    after = os.fstat(fd)
    if os.path.samestat(found, before) or os.path.samestat(found, after):
        return True
    return before.st_ino != after.st_ino and stat.S_IFMT(found.st_mode) == stat.S_IFMT(
        after.st_mode
    )


@contextmanager
def locked(
    path: str, check: StopCheck = never_stop, *, timeout_seconds: float | None = None
) -> Iterator[None]:
    """Hold the lock that the file `path` stands for: it must not exist for any other reason.

    Where a full disk has no room for the file, its directory is locked. Where the file system has
    no locks, or the file seems to be another at each look, nothing is locked, with a warning in the
    log.

    Args:
        path: the file; made, and removed at the end.
        check: called while somebody else holds it; what it raises ends the wait.
        timeout_seconds: how long to wait; None: as long as it takes. After 10 s the wait is logged.

    Raises OSError as open(2) and flock(2) do; StorageError where the time is over (ETIMEDOUT).
    """
    opened: list[int] = []
    mine = False
    rounds = 0
    wait = _LockWait(path, check, timeout_seconds)
    try:
        while not mine:
            unlock(opened)
            is_file = _open_lock(opened, path)
            try:
                lock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB, path=path)
            except BlockingIOError:
                wait.pause()
                continue
            if not is_file:
                break
            mine = _is_still_at(opened[0], path)  # or whoever had it has removed it
            rounds += 1
            if not mine and rounds > _ATTEMPTS:
                wait.pause()
            if not mine and rounds > _MAX_ROUNDS:
                _warn(
                    os.path.dirname(path),
                    "a file has another inode number at each look, so locks do not work here: two "
                    "saves of one directory at the same time may lose one of the two",
                )
                mine = True
        wait.end()
        yield
    finally:
        try:
            if mine:
                with suppress(OSError):  # whoever comes next does it
                    syscalls.current().unlink(path)
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
    """Return what `is_open_file_at` does, but open the path again.

    A network file system caches the answer of stat(2), but not that of open(2).
    """
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        return _is_same(fd, lambda: os.fstat(opened[0]))
    except FileNotFoundError:
        return False
    finally:
        close_all(opened)


def wait_for_lock(path: str, check: StopCheck = never_stop) -> None:
    """Wait while somebody holds the lock `path`; `check` is called meanwhile. Changes nothing."""
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        wait_and_lock(opened[0], path, fcntl.LOCK_SH, check=check)
    except OSError:
        pass  # nobody holds it, or that cannot be told
    finally:
        unlock(opened)


def is_locked(path: str, *, even_shared: bool) -> bool:
    """Return whether somebody holds the lock of a file, as far as that can be told.

    Changes nothing. `even_shared`: or shares it with others.
    """
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDONLY | _FLAGS)
        kind = fcntl.LOCK_EX if even_shared else fcntl.LOCK_SH
        syscalls.current().flock(opened[0], kind | fcntl.LOCK_NB)
        return False
    except OSError as e:
        return isinstance(e, BlockingIOError)
    finally:
        unlock(opened)


def remove_unlocked(
    path: str, *, folder: int | None = None, dry_run: bool = False, without_locks: bool = False
) -> bool:
    """Remove a file unless a living save holds its lock; return whether it could be removed.

    Args:
        path: the file.
        folder: the descriptor of a directory that `path` is relative to.
        dry_run: remove nothing.
        without_locks: also where the file system has no locks, and nobody can tell.
    """
    calls = syscalls.current()
    opened: list[int] = []
    try:
        open_into(opened, path, os.O_RDWR | _FLAGS, folder=folder)
        take = lock if without_locks else calls.flock
        take(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not dry_run:
            calls.unlink(path, folder)
        return True
    except OSError:
        return False  # gone meanwhile, another user's, a live save's, or no locks here: not ours
    finally:
        unlock(opened)
