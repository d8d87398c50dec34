"""A probe in a root, by which managers notice that they use one directory at the same time."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress

from cordwood.storage import syscalls
from cordwood.storage.directories import make_ancestors, scan_directory
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.file_locks import (
    LOCK_FLAGS,
    describe_holder,
    opened_for_lock,
    remove_unlocked,
    unlock,
    wait_and_lock,
)
from cordwood.storage.paths import temporary_path, temporary_pattern
from cordwood.storage.syscalls import open_fd

_NAME, _KIND = "steps", "probe"
_PATTERN = temporary_pattern(_NAME, _KIND)


class RootProbe:
    """A file with a random name in a root, which is locked until `close`.

    The root is created, too. Probes of killed processes are removed.

    Args:
        root: the root.

    Attributes:
        name: the name of the file.

    Raises OSError.
    """

    def __init__(self, root: LocalPath) -> None:
        self._root = root.text
        make_ancestors(root.text, [])
        for name in _probes_in(root.text):
            remove_unlocked(f"{root.text}/{name}")
        path, self._fd = _create(root.text)
        self.name = os.path.basename(path)
        self._removal = weakref.finalize(self, _remove, path, self._fd)  # at the exit, too
        _probes.add(self)

    def sees(self, name: str) -> bool:
        """Return True if the probe of another process is in this root: both are one directory."""
        return os.path.lexists(f"{self._root}/{name}")

    def others(self) -> dict[str, str]:
        """Return the names of the locked probes of others, each with a description of its holder.

        There are none where the file system has no locks.
        """
        holders = {}
        for name in _probes_in(self._root):
            path = f"{self._root}/{name}"
            if name != self.name and _is_locked(path):
                holders[name] = describe_holder(path)
        return holders

    def close(self) -> None:
        """Remove it."""
        self._removal()

    def forget(self) -> None:
        """Close the descriptor in a forked child: the lock stays that of the parent alone."""
        if self._removal.detach() is not None:
            os.close(self._fd)


_probes: weakref.WeakSet[RootProbe] = weakref.WeakSet()


def is_probe(name: str) -> bool:
    """Return True for the name of a probe; that of a killed process stays for a while."""
    return _PATTERN.fullmatch(name) is not None


def _probes_in(root: str) -> list[str]:
    return [each.name for each in scan_directory(root) if is_probe(each.name)]


def _create(root: str) -> tuple[str, int]:
    """Create a probe and lock it; return its path and descriptor."""
    while True:
        path = temporary_path(root, _NAME, _KIND)
        fd = open_fd(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | LOCK_FLAGS)
        try:
            wait_and_lock(fd, path)
            if os.fstat(fd).st_nlink:  # else another manager took it for that of a killed process
                return path, fd
        except BaseException:
            _remove(path, fd)
            raise
        unlock(fd)


def _is_locked(path: str) -> bool:
    try:
        with opened_for_lock(path, os.O_RDWR | LOCK_FLAGS) as fd:
            syscalls.current().flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # removed meanwhile, another user's, or there are no locks
        return False
    return False


def _remove(path: str, fd: int) -> None:
    with suppress(OSError):  # the next probe removes it
        syscalls.current().unlink(path)
    unlock(fd)


def _forget_all() -> None:
    for probe in list(_probes):
        probe.forget()


os.register_at_fork(after_in_child=_forget_all)
