"""Hard links to files that other processes may be about to remove."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from cordwood.io.uninterruptible import StopCheck
from cordwood.storage import syscalls
from cordwood.storage.file_locks import is_open_file_at, lock
from cordwood.storage.syscalls import open_into

_WAIT_SECONDS = 1.0
_POLL_SECONDS = 0.02


def link_under_shared_lock(opened: list[int], source: str, target: str, check: StopCheck) -> bool:
    """Link a file to a new name, under a shared lock; a process that removes files checks for it.

    Args:
        opened: the descriptor that holds the lock is appended to it.
        source: the file; not a symlink.
        target: the new name. It may already be a link to the same file.
        check: called during the short wait for the lock.

    Returns True if `target` is that file now. Raises OSError as the system does.
    """
    open_into(opened, source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            lock(opened[0], fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:  # another process checks if it is in use, or its save just ends
            if time.monotonic() > deadline:
                return False
            check()
            time.sleep(_POLL_SECONDS)
    with suppress(FileExistsError):  # from a save of this directory that died, or still runs
        syscalls.current().link(source, target)
    return is_open_file_at(opened[0], target)
