"""Removal of what killed saves left: staging directories, and old directories not in use."""

from __future__ import annotations

import fcntl
import os

from cordwood.storage import syscalls
from cordwood.storage.directories import may_remove, remove_tree, sync_directory
from cordwood.storage.locks.file_locks import is_open_file_at, lock, opened_for_lock
from cordwood.storage.paths import stale_stages
from cordwood.threads.stop_check import never_stop, stop_check

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def collect_stages(path: str | os.PathLike[str], *, dry_run: bool) -> list[str]:
    """Remove this user's unused staging directories beside a path; return their paths.

    The removals are durable: after a power cut no directory is there again that nothing removes,
    because what a new save puts at the path may be there, and a call that is repeated is refused.
    """
    stages = stale_stages(path)
    if stages and not dry_run:
        # The exchange of a killed save may not be durable: then the path still leads to one.
        sync_directory(os.path.dirname(stages[0]))
    removed = [stage for stage in stages if remove_unused(stage, dry_run=dry_run)]
    if removed and not dry_run:
        sync_directory(os.path.dirname(removed[0]))
    return removed


def remove_unused(path: str, *, replaced: bool = False, dry_run: bool = False) -> bool:
    """Remove a directory unless a running save or a reader has locked it; return True if removed.

    Args:
        path: the directory.
        replaced: this save has replaced it. Then it is removed even if it belongs to another
            user, or the file system has no locks.
        dry_run: remove nothing.
    """
    try:
        if not replaced and not may_remove(path):
            return False
        with opened_for_lock(path, FOLDER_FLAGS | os.O_NOFOLLOW) as fd:
            take = lock if replaced else syscalls.current().flock
            take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another save may have exchanged it: then the path leads to another directory.
            if not is_open_file_at(fd, path):
                return False
            if dry_run:
                return True
            with stop_check(never_stop):
                remove_tree(path)
            return not os.path.lexists(path)  # another user's may stay
    except OSError:
        return False  # already removed, another user's, or in use: the next save tries again
