"""The exchange of a finished staging directory with the directory that it replaces.

A file system that cannot exchange two directories gets two renames: the old directory first gets a
name that readers know (`locate_directory`). If the save dies then, the next save renames it back.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from cordwood.storage import syscalls
from cordwood.storage.directories import remove_tree, sync_directory
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.paths import LOCK_NAME, old_name, parent_and_name
from cordwood.threads.stop_check import never_stop, stop_check

_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY)


def exchange_directories(new: str, target: str, old: str) -> str:
    """Put a new directory in the place of another; return the path where that one is now.

    Args:
        new: the new directory; it and the target are exchanged.
        target: the directory to replace.
        old: the name that readers know, which the target gets where the two cannot be exchanged.
    """
    calls = syscalls.current()
    try:
        calls.exchange(new, target)
    except OSError as e:
        if e.errno not in _NO_EXCHANGE:
            raise
    else:
        return new
    calls.replace(target, old)
    try:
        calls.replace(new, target)
    except BaseException:
        # Otherwise `locate_directory` finds it there, and the next save puts it back.
        with suppress(OSError):
            calls.replace(old, target)
        raise
    return old


def recover_exchanged(path: str | os.PathLike[str]) -> None:
    """Rename back the directory of a path that a killed save had renamed, as below."""
    parent, name = parent_and_name(path)
    old = f"{parent}/{old_name(name)}"
    if os.path.isdir(old):
        with locked(f"{parent}/{LOCK_NAME}"):
            recover_directory(f"{parent}/{name}", old)


def recover_directory(target: str, old: str) -> None:
    """Rename back a directory that a killed save had renamed; remove it if it was replaced."""
    if not os.path.isdir(old):
        return
    if os.path.lexists(target):
        sync_directory(os.path.dirname(old))  # the killed save may not have flushed its renames
        with stop_check(never_stop):
            remove_tree(old)
    else:
        syscalls.current().replace(old, target)
