"""Atomic and durable replacement of one file.

The new bytes are written to a temporary file in the same directory, under an exclusive lock; then
fsync, rename over the destination, fsync of the directory. Until the rename the old file is whole;
after the last fsync the new one survives a power cut. A save that was killed leaves its temporary
file unlocked: the next save of the same name removes it.

The new file has at most the permissions of the old one, and so has a new directory. While it is
written, only its owner may access it, unless it is created with no more rights than the old one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from cordwood.errors import CordwoodError, NotACheckpointError, StorageError
from cordwood.io.stale_handles import retry_stale
from cordwood.storage import syscalls
from cordwood.storage.file_locks import GONE_ERRORS, remove_unlocked, wait_and_lock
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


def make_ancestors(folder: str, made: list[str]) -> None:
    """Make a directory and its missing parents durably, and append their paths to `made`.

    An empty directory may be that of a process that died before it flushed the entry.
    """
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
        sync_directory(os.path.dirname(each))  # also if another process has just made it
    if missing or _is_empty(folder):
        # The process that made the first existing parent may not have flushed its entry.
        with suppress(PermissionError):
            sync_directory(os.path.dirname(folder))


def _is_empty(folder: str) -> bool:
    with suppress(PermissionError), os.scandir(folder) as entries:
        return next(entries, None) is None
    return False


def remove_directories(made: list[str]) -> None:
    """Remove the directories that `make_ancestors` made, as far as they are empty."""
    for folder in reversed(made):
        with suppress(OSError):  # not empty: another process uses it
            syscalls.current().rmdir(folder)


def finish_file(path: str) -> None:
    """Make a whole file durable that a killed process has put in place; remove its temporaries."""
    folder, name = os.path.split(os.path.realpath(path))
    remove_stale_temporaries(folder, name)
    with opened_fd(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) as fd:
        syscalls.current().fsync(fd)
    sync_directory(folder)


def sync_directory(folder: str) -> None:
    """Flush a directory to the disk, if the file system supports it (some FUSE and SMB do not)."""
    try:
        with opened_fd(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            syscalls.current().fsync(fd)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise


def remove_stale_temporaries(folder: str, name: str) -> None:
    """Remove the temporary files of `name` that no running save has locked. Raises OSError."""
    pattern = temporary_pattern(name)
    with open_directory_fd(folder) as fd:
        for entry in os.listdir(fd):
            if pattern.fullmatch(entry):
                remove_unlocked(entry, folder=fd)


_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"  # of a directory, inherited by new files in it
_NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES)
_REFUSED = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_FILE_BITS = 0o666
_PRIVATE = 0o600


class Rights(NamedTuple):
    """The permissions, group and ACL of a file or directory. The owner is the user who saves."""

    mode: int  # the permission bits
    group: int
    acl: bytes | None = None  # the value of the extended attribute
    default_acl: bytes | None = None


def rights_of(path: str | int) -> Rights | None:
    """Return the rights of a file or directory, by path or descriptor; None if there is none."""
    try:
        status = os.fstat(path) if isinstance(path, int) else os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return None
        default = _attribute(path, _DEFAULT_ACL) if stat.S_ISDIR(status.st_mode) else None
        return Rights(stat.S_IMODE(status.st_mode), status.st_gid, _attribute(path, _ACL), default)
    except (FileNotFoundError, NotADirectoryError):
        return None


def creation_mode(old: Rights | None, folder: str) -> int:
    """Return the mode for open(2) to create a file in a directory.

    Args:
        old: the rights of the file that it will replace; None: there is none.
        folder: the directory.
    """
    if old is None:
        return _FILE_BITS
    status = os.stat(folder)
    group = status.st_gid if status.st_mode & stat.S_ISGID else os.getegid()
    if (
        old.acl is None
        and old.group == group
        and old.mode & _PRIVATE == _PRIVATE
        and _attribute(folder, _DEFAULT_ACL) is None
    ):
        return old.mode & _FILE_BITS
    return _PRIVATE


def limit_file(fd: int, old: Rights | None, folder: str) -> None:
    """Give a file, created with `creation_mode`, the rights of the file that it will replace.

    The umask removes bits from them, as for any new file. If the group or the ACL of the old file
    cannot be set, the rights that depend on them are not given either.
    """
    if old is None:
        return
    mode = old.mode & _FILE_BITS
    current = rights_of(fd)
    if current == old._replace(mode=mode):
        return
    if _attribute(folder, _DEFAULT_ACL) is None:
        mode &= ~_umask()
    _limit(fd, old, mode)


def limit_folder(fd: int, old: Rights | None) -> None:
    """Give a directory the rights of the one that it replaces, as far as `limit_file` would."""
    if old is not None and rights_of(fd) != old:
        _limit(fd, old, old.mode)


def make_private(fd: int, old: Rights | None) -> None:
    """Give only the owner access to a new directory, until `limit_folder` sets its rights."""
    if old is not None and rights_of(fd) != old:
        _allowed(lambda: syscalls.current().chmod(fd, 0o700))


def _limit(fd: int, old: Rights, mode: int) -> None:
    """Set group, ACLs and mode in an order that never gives more rights than `old` has.

    Some file systems (FAT) give all files the same mode and refuse to change it; the old file then
    has this mode, too.
    """
    calls = syscalls.current()
    current = rights_of(fd)
    assert current is not None
    if current.mode & ~old.mode or current.group != old.group or current.acl != old.acl:
        private = current.mode & 0o700
        _allowed(lambda: calls.chmod(fd, private))
    group_bits = True
    if current.group != old.group:
        group_bits = _allowed(lambda: calls.chown(fd, old.group))
    acl_is_set = current.acl == old.acl
    if not acl_is_set and (group_bits or old.acl is None):
        acl_is_set = _allowed(lambda: calls.set_attribute(fd, _ACL, old.acl))
    if current.default_acl != old.default_acl:
        _allowed(lambda: calls.set_attribute(fd, _DEFAULT_ACL, old.default_acl))
    if not acl_is_set or (old.acl is not None and not group_bits):
        mode &= ~0o077
    elif not group_bits:
        # Members of the old group now count as others: they get what they had, or less.
        mode &= ~0o070 & ~(~(mode >> 3) & 0o007)
    after = rights_of(fd)
    assert after is not None
    if after.mode != mode and not _allowed(lambda: calls.chmod(fd, mode)):
        excess = after.mode & ~old.mode & 0o077
        if excess:
            raise PermissionError(
                errno.EPERM,
                f"the permission bits {excess:03o}, which what it replaces does not have, cannot "
                "be taken away",
            )


def _allowed(call: Callable[[], None]) -> bool:
    try:
        call()
    except OSError as e:
        if e.errno not in _REFUSED:
            raise
        return False
    return True


def _attribute(path: str | int, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError as e:
        if e.errno not in _NO_ACL:
            raise
        return None


def _umask() -> int:
    """Return the umask of this process, if possible without changing it for a moment."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
