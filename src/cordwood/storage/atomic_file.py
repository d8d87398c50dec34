"""Atomic and durable replacement of one file.

The new bytes are written to a temporary file in the same directory, under an exclusive lock; then
fsync, rename over the destination, fsync of the directory. Until the rename the old file is whole;
after the last fsync the new one survives a power cut. A save that was killed leaves its temporary
file unlocked: the next save of the same name removes it.

The new file has at most the permissions of the old one (`storage/file_rights.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.errors import CordwoodError, NotACheckpointError, StorageError
from cordwood.io.stale_handles import retry_stale
from cordwood.storage import syscalls
from cordwood.storage.directories import make_ancestors, remove_directories, sync_directory
from cordwood.storage.file_rights import creation_mode, limit_file, rights_of
from cordwood.storage.locks.file_locks import GONE_ERRORS, remove_unlocked, wait_and_lock
from cordwood.storage.paths import temporary_path, temporary_pattern
from cordwood.storage.syscalls import (
    close_quietly,
    open_directory_fd,
    open_fd,
    opened_fd,
    write_all,
)


class SaveStep:
    """The step of a save, for the message about a system call that fails."""

    doing = "creating its directory"
    in_place = False  # True once the new file or directory is what a reader finds

    @contextmanager
    def explain_errors(self, path: str, *, what: str) -> Iterator[None]:
        """Raise OSErrors of the block with the current step in their message."""
        try:
            yield
        except OSError as e:
            if isinstance(e, CordwoodError) or e.errno is None:
                raise
            raise storage_error(e, path, self.doing, what=what, in_place=self.in_place) from e


def storage_error(error: OSError, path: str, doing: str, *, what: str, in_place: bool) -> OSError:
    """Return the exception to raise for a system call that failed during a save."""
    then = "what was there before is untouched"
    if in_place:
        then = (
            f"the new {what} is in place and whole, but a power cut may still undo it; save again"
        )
    assert error.errno is not None
    message = f"{os.strerror(error.errno)} while {doing}; {then}"
    if error.errno == errno.EMFILE:
        message += (
            ". A save into packs keeps each of its new files open until all are in place: write "
            "fewer of them (a larger max_shard_bytes), or raise the limit of this process (ulimit "
            "-n)"
        )
    mapped = OSError(error.errno, message, path)  # PermissionError and so on
    return mapped if type(mapped) is not OSError else StorageError(error.errno, message, path)


class WritableFile(SaveStep):
    """A file that is being written.

    The object exists before its file: a creation that fails may have made the file all the same.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.fd = -1

    def open(self, mode: int = 0o666) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = open_fd(self.path, flags, mode=mode)

    def lock(self) -> bool:
        """Lock it; return False if another save has removed it first, as a killed save's file."""
        try:
            retry_stale(lambda: wait_and_lock(self.fd, self.path))
            return os.fstat(self.fd).st_nlink > 0
        except OSError as e:
            if e.errno not in GONE_ERRORS:
                raise
            return False

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        write_all(self.fd, data, offset)

    def require_size(self, size_bytes: int) -> None:
        """Raise OSError unless it has that size."""
        stored_bytes = os.fstat(self.fd).st_size
        if stored_bytes != size_bytes:
            raise OSError(errno.EIO, f"wrote {size_bytes} bytes, found {stored_bytes}")

    def close(self) -> None:
        """Close it, which also unlocks it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close_quietly(fd)

    def remove(self) -> None:
        """Remove it; its lock stays until it is closed."""
        with suppress(OSError):  # the next save tries again
            syscalls.current().unlink(self.path)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[WritableFile]:
    """Create a temporary file for the block; at its end, the file durably becomes `path`.

    The block must write all bytes before it ends. On any exception the temporary file is removed,
    and the old file at `path` stays. The new file has at most the permissions of the old one.

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
    temporary = WritableFile()
    calls = syscalls.current()
    try:
        with temporary.explain_errors(asked, what="file"):
            make_ancestors(folder, made)
            temporary.doing = "removing what a killed save left"
            remove_stale_temporaries(folder, name)
            old = rights_of(target)
            temporary.doing = "creating a temporary file beside it"
            while True:
                temporary.path = temporary_path(folder, name)
                temporary.open(creation_mode(old, folder))
                if temporary.lock():
                    break
                temporary.close()
            temporary.doing = "writing"
            yield temporary
            temporary.doing = "setting its permissions"
            limit_file(temporary.fd, rights_of(target) or old, folder)
            temporary.doing = "flushing it to the disk"
            # Never retried: after a failed fsync the kernel may have dropped the pages and marked
            # them as clean, so a second fsync would succeed without the data.
            calls.fsync(temporary.fd)
            temporary.doing = "renaming it into place"
            calls.replace(temporary.path, target)
            temporary.in_place = True
            temporary.doing = "flushing its directory to the disk"
            sync_directory(folder)
    except BaseException:
        if not temporary.in_place:
            if temporary.path:
                temporary.remove()
            remove_directories(made)
        raise
    finally:
        temporary.close()


def _resolve(path: str) -> str:
    """Return the absolute path without symlinks; refuse what a rename must not replace."""
    if path.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, "expected the path of a file to save", path)
    target = os.path.realpath(path)
    try:
        status = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return target
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(
            errno.EISDIR, "expected the path of a file to save, found a directory", path
        )
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(status.st_mode):
        raise NotACheckpointError(
            errno.EEXIST, "will not replace a pipe, socket or device with a file", path
        )
    return target


def finish_file(path: str) -> None:
    """Make a whole file durable that a killed process has put in place; remove its temporaries."""
    folder, name = os.path.split(os.path.realpath(path))
    remove_stale_temporaries(folder, name)
    with opened_fd(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) as fd:
        syscalls.current().fsync(fd)
    sync_directory(folder)


def remove_stale_temporaries(folder: str, name: str) -> None:
    """Remove the temporary files of `name` that no running save has locked. Raises OSError."""
    pattern = temporary_pattern(name)
    with open_directory_fd(folder) as fd:
        for entry in os.listdir(fd):
            if pattern.fullmatch(entry):
                remove_unlocked(entry, folder=fd)
