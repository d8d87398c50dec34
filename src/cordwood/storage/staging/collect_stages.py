"""Removal of what killed saves left: staging directories, and old directories not in use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

from cordwood.storage import syscalls
from cordwood.storage.directories import may_remove, remove_tree, scan_directory, sync_directory
from cordwood.storage.locks.file_locks import (
    is_locked,
    is_open_file_at,
    lock,
    opened_for_lock,
)
from cordwood.storage.paths import is_stage_name, stale_stages, temporary_pattern
from cordwood.threads.stop_check import never_stop, stop_check

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def collect_stages(path: str | os.PathLike[str], *, dry_run: bool, spared: str = "") -> list[str]:
    """Remove this user's unused staging directories beside a path; return their paths.

    `spared` is the path of one that stays.

    The removals are durable: after a power cut no directory is there again that nothing removes,
    because what a new save puts at the path may be there, and a call that is repeated is refused.
    """
    stages = [stage for stage in stale_stages(path) if stage != spared]
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
            if not replaced and _has_locked_file(path):
                return False
            if dry_run:
                return True
            with stop_check(never_stop):
                remove_tree(path)
            return not os.path.lexists(path)  # another user's may stay
    except OSError:
        return False  # already removed, another user's, or in use: the next save tries again


def _has_locked_file(path: str) -> bool:
    """Return True if a save has locked a file in a directory.

    A save of packs locks its files. Another machine that shares a network file system sees these
    locks, and that of the directory it may not see.
    """
    files = [each.path for each in scan_directory(path) if each.is_file(follow_symlinks=False)]
    return any(is_locked(each, even_shared=True) for each in files)


def collect_stages_of_packs(
    root: str, is_data_file: Callable[[str], bool], *, dry_run: bool, spared: str = ""
) -> list[str]:
    """Remove the unused staging directories in a root that hold packs, or nothing; return paths.

    They are those of killed saves of its steps. Staging directories of other layouts stay until
    the next save of the same name.

    Args:
        root: the directory.
        is_data_file: returns True for the name of a data file of packs.
        dry_run: remove nothing.
        spared: the name of a step whose staging directories stay; "": none do.
    """
    stages = []
    is_spared = temporary_pattern(spared, "stage").fullmatch
    for each in scan_directory(root):
        if is_spared(each.name):
            continue
        if is_stage_name(each.name) and each.is_dir(follow_symlinks=False):
            names = [inner.name for inner in scan_directory(each.path)]
            if not names or any(map(is_data_file, names)):
                stages.append(each.path)
    removed = [path for path in sorted(stages) if remove_unused(path, dry_run=dry_run)]
    if removed and not dry_run:
        sync_directory(root)
    return removed
