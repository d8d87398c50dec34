"""A second name for a file that others may want to remove."""

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
    """Give a file another name, under a shared lock that whoever removes files asks for.

    Args:
        opened: gets the descriptor that holds the lock.
        source: the file; no symlink.
        target: the new name. There may already be a link to the same file.
        check: called while the lock is waited for, which is not for long.

    Returns whether `target` is that file now. Raises OSError as the system does.
    """
    open_into(opened, source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            lock(opened[0], fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:  # somebody looks whether it is in use, or its save just ends
            if time.monotonic() > deadline:
                return False
            check()
            time.sleep(_POLL_SECONDS)
    with suppress(FileExistsError):  # of a save of this directory that died, or goes on
        syscalls.current().link(source, target)
    return is_open_file_at(opened[0], target)
