"""Put a file in place at once and for good, or not at all.

The new bytes go to a temporary sibling under an exclusive lock; then fsync, rename over the
destination, fsync of the directory. Until the rename the old file is whole; after the last
fsync the new one outlives a power cut. A save that was killed leaves its temporary behind,
unlocked: the next save of the same name removes it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import NotACheckpointError, StorageError
from cordwood.io.uninterruptible import StopCheck, never_stop
from cordwood.storage import syscalls
from cordwood.storage.directories import open_directory_fd
from cordwood.storage.file_locks import remove_unlocked, wait_and_lock
from cordwood.storage.permissions import creation_mode, limit_file, rights_of
from cordwood.storage.syscalls import open_into, write_all

_NAME_MAX = 255  # bytes in a file name on Linux file systems
_RANDOM_BYTES = 8


class WritableFile:
    """A file being written. `doing` says what, for the message of an error.

    It is made before its file is, so that an interrupt while that is made finds what to remove.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.doing = "creating a temporary file beside it"
        self.opened: list[int] = []

    @property
    def fd(self) -> int:
        return self.opened[0]

    def open(self, mode: int = 0o666) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        open_into(self.opened, self.path, flags, mode=mode)

    def lock(self, check: StopCheck = never_stop) -> bool:
        """Lock it; return False if it is gone: another save took it for a killed one's before.

        `check` is called while somebody else holds its lock.
        """
        wait_and_lock(self.fd, self.path, check=check)
        return os.fstat(self.fd).st_nlink > 0

    def remove(self) -> None:
        with suppress(OSError):  # the next save tries again
            syscalls.current().unlink(self.path)

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data` at `offset`."""
        write_all(self.fd, data, offset)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[WritableFile]:
    """Write a temporary inside the block; on leaving it, it durably becomes `path`.

    The block returns normally only when all bytes are written. On any exception the temporary
    is removed and what was at `path` stays. The new file has at most the rights of the old one.

    Raises:
        IsADirectoryError: `path` is a directory.
        NotACheckpointError: `path` is a pipe, socket or device.
        StorageError: the disk failed or is full (errno kept); or the builtin subclass of OSError
            that belongs to the errno (PermissionError, say).
    """
    asked = os.fspath(path)
    target = _resolve(asked)
    folder, name = os.path.split(target)
    made: list[str] = []
    temporary: WritableFile | None = None
    in_place = False
    doing = "creating its directory"
    calls = syscalls.current()
    try:
        make_ancestors(folder, made)
        doing = "removing what a killed save left"
        remove_stale_temporaries(folder, name)
        old = rights_of(target)
        while True:
            temporary = WritableFile(temporary_path(folder, name))
            temporary.open(creation_mode(old, folder))
            if temporary.lock():
                break
            calls.close(temporary.opened.pop())
        temporary.doing = "writing"
        yield temporary
        doing = temporary.doing = "setting its permissions"
        limit_file(temporary.fd, rights_of(target) or old, folder)
        doing = temporary.doing = "flushing it to the disk"
        # Never retried: after a failed fsync the kernel may have dropped the pages and call
        # them clean, so a second fsync would succeed without the data.
        calls.fsync(temporary.fd)
        doing = temporary.doing = "renaming it into place"
        calls.replace(temporary.path, target)
        in_place = True
        doing = temporary.doing = "flushing its directory to the disk"
        sync_directory(folder)
    except OSError as e:
        _abandon(temporary, made, in_place=in_place)
        if temporary is not None:
            doing = temporary.doing
        if isinstance(e, StorageError) or e.errno is None:
            raise
        raise storage_error(e, asked, doing, what="file", in_place=in_place) from e
    except BaseException:
        _abandon(temporary, made, in_place=in_place)
        raise
    finally:
        if temporary is not None and temporary.opened:
            # No `suppress`, which is Python code: an interrupt in it would come before the call.
            try:  # noqa: SIM105
                calls.close(temporary.opened[0])
            except OSError:
                pass  # its fsync has told all there is to tell


def _resolve(path: str) -> str:
    """The absolute path behind any symlinks; refuses what a rename must not replace."""
    if path.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, "expected the path of a file to save", path)
    target = os.path.realpath(path)
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return target
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(
            errno.EISDIR, "expected the path of a file to save, found a directory", path
        )
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(found.st_mode):
        raise NotACheckpointError(
            errno.EEXIST, "will not replace a pipe, socket or device with a file", path
        )
    return target


def make_ancestors(folder: str, made: list[str]) -> None:
    """Make a directory and those above it that are missing; they are added to `made`."""
    missing: list[str] = []
    while not os.path.isdir(folder):
        missing.append(folder)
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    for each in reversed(missing):
        try:
            syscalls.current().mkdir(each)
            made.append(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise
        sync_directory(os.path.dirname(each))  # also where another process just made it
    if missing:
        # Whoever made the one that was there may not have flushed it yet, or have died.
        with suppress(PermissionError):
            sync_directory(os.path.dirname(folder))


def sync_directory(folder: str) -> None:
    """Flush a directory to the disk, where the file system can do that (some FUSE, SMB cannot)."""
    calls = syscalls.current()
    opened: list[int] = []
    try:
        open_into(opened, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        calls.fsync(opened[0])
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
    finally:
        if opened:
            calls.close(opened[0])


def temporary_prefix(name: str) -> str:
    """What the names of all temporaries of `name` begin with."""
    stem = f".{name}.cordwood-"
    if len(os.fsencode(stem)) + 2 * _RANDOM_BYTES + len(".tmp") <= _NAME_MAX:
        return stem
    short = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return f".{short}.cordwood-"


def temporary_pattern(name: str) -> re.Pattern[str]:
    """The names of all temporaries of `name`."""
    return re.compile(re.escape(temporary_prefix(name)) + f"[0-9a-f]{{{2 * _RANDOM_BYTES}}}\\.tmp")


def temporary_path(folder: str, name: str) -> str:
    """Where a new temporary of `name` may go."""
    return os.path.join(folder, f"{temporary_prefix(name)}{secrets.token_hex(_RANDOM_BYTES)}.tmp")


def remove_stale_temporaries(folder: str, name: str) -> None:
    """Remove the temporaries of `name` that no living save holds. Raises OSError."""
    pattern = temporary_pattern(name)
    with open_directory_fd(folder) as fd:
        for entry in os.listdir(fd):
            if pattern.fullmatch(entry):
                remove_unlocked(entry, folder=fd)


def _abandon(temporary: WritableFile | None, made: list[str], *, in_place: bool) -> None:
    if in_place:
        return
    if temporary is not None:
        temporary.remove()
    for folder in reversed(made):
        with suppress(OSError):  # not empty: someone else uses it
            syscalls.current().rmdir(folder)


def storage_error(error: OSError, path: str, doing: str, *, what: str, in_place: bool) -> OSError:
    """What to raise of a system call's failure in the middle of a save."""
    if in_place:
        then = (
            f"the new {what} is in place and whole, but a power cut may still undo it; save again"
        )
    else:
        then = "what was there before is untouched"
    assert error.errno is not None
    message = f"{os.strerror(error.errno)} while {doing}; {then}"
    mapped = OSError(error.errno, message, path)  # PermissionError and so on
    return mapped if type(mapped) is not OSError else StorageError(error.errno, message, path)
