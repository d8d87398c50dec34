"""Permissions: a file or directory has at most those of the one that it replaces.

While it is written a file has fewer: it is its owner's alone, unless it would be made with no more
rights than the old one has.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from cordwood.storage import syscalls

_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"  # of a directory, for what is made in it
_NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES)
_REFUSED = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_FILE_BITS = 0o666
_PRIVATE = 0o600


class Rights(NamedTuple):
    """The permissions, group and ACL of a file or directory. Its owner is whoever saves."""

    mode: int  # the permission bits
    group: int
    acl: bytes | None = None  # as the extended attribute has it
    default_acl: bytes | None = None


def rights_of(path: str | int) -> Rights | None:
    """Return the rights of a file or directory, by path or descriptor; None if it is not there."""
    try:
        status = os.fstat(path) if isinstance(path, int) else os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return None
        default = _attribute(path, _DEFAULT_ACL) if stat.S_ISDIR(status.st_mode) else None
        return Rights(stat.S_IMODE(status.st_mode), status.st_gid, _attribute(path, _ACL), default)
    except (FileNotFoundError, NotADirectoryError):
        return None


def creation_mode(old: Rights | None, folder: str) -> int:
    """Return the mode to create a file with in a directory, for open(2).

    Args:
        old: the rights of the file that it is to replace; None: there is none.
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
    """Give a file, made with `creation_mode`, the rights of the one that it is to replace.

    The umask takes bits away from them, as from those of any new file. If the group or the ACL of
    the old file cannot be given, the rights that depend on them are not given either.
    """
    if old is None:
        return
    mode = old.mode & _FILE_BITS
    now = rights_of(fd)
    if now == old._replace(mode=mode):
        return
    if _attribute(folder, _DEFAULT_ACL) is None:
        mode &= ~_umask()
    _limit(fd, old, mode)


def limit_folder(fd: int, old: Rights | None) -> None:
    """Give a directory the rights of the one that it replaces, as far as `limit_file` would."""
    if old is not None and rights_of(fd) != old:
        _limit(fd, old, old.mode)


def make_private(fd: int, old: Rights | None) -> None:
    """Make a new directory its owner's alone until `limit_folder`, unless its rights are right."""
    if old is not None and rights_of(fd) != old:
        _allowed(lambda: syscalls.current().chmod(fd, 0o700))


def _limit(fd: int, old: Rights, mode: int) -> None:
    """Set group, ACLs and mode, so that there are no more rights than `old` has at any moment.

    Some file systems (FAT) give all files one mode and refuse to change it: that of the old one.
    """
    calls = syscalls.current()
    now = rights_of(fd)
    assert now is not None
    if now.mode & ~old.mode or now.group != old.group or now.acl != old.acl:
        private = now.mode & 0o700
        _allowed(lambda: calls.chmod(fd, private))
    group_bits = True
    if now.group != old.group:
        group_bits = _allowed(lambda: calls.chown(fd, old.group))
    acl_is_set = now.acl == old.acl
    if not acl_is_set and (group_bits or old.acl is None):
        acl_is_set = _allowed(lambda: calls.set_attribute(fd, _ACL, old.acl))
    if now.default_acl != old.default_acl:
        _allowed(lambda: calls.set_attribute(fd, _DEFAULT_ACL, old.default_acl))
    if not acl_is_set or (old.acl is not None and not group_bits):
        mode &= ~0o077
    elif not group_bits:
        # The old group's members count as others now: they get what they had, or less.
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
    """Return the umask of this process, without changing it for a moment if that can be helped."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    found = os.umask(0o077)
    os.umask(found)
    return found
