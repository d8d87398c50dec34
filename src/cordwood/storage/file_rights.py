"""The permissions, group and ACL of a file or directory that replaces another one.

It has at most those of the old one. While it is written, only its owner may access it, unless it is
created with no more rights than the old one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from cordwood.storage import syscalls

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
