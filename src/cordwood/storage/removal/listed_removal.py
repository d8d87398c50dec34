"""Removal of exactly what was listed.

What is removed is first renamed to a hidden name, and listed once more: so a file that has come
meanwhile is never removed, and the rest gets its name again. `killed_removals` has the names that
a removal which is killed leaves.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from cordwood.errors import NotACheckpointError
from cordwood.message_text import first_names
from cordwood.storage import syscalls
from cordwood.storage.directories import sync_directory
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.paths import LOCK_NAME, temporary_path
from cordwood.storage.removal.killed_removals import (
    RemovedNames,
    finish_removals,
    hidden_path,
    remove_listed_names,
    rename_back,
    write_list,
)
from cordwood.storage.removal.list_tree import Listing, list_tree
from cordwood.storage.storage_protocol import NamingRules

_MAX_SHOWN = 3


def remove_listed(path: str, listing: Listing, rules: NamingRules, steps: Sequence[str]) -> None:
    """Remove a file or a directory, if it is still as it was listed.

    Args:
        path: the file or directory; not a symbolic link.
        listing: what `list_tree` has returned.
        rules: the naming rules of the steps of managers.
        steps: relative paths of directories that managers may be saving, or have pinned.

    Raises NotACheckpointError if something has come or gone meanwhile, or is in use: then nothing
    is removed. Raises OSError.
    """
    parent, name = os.path.split(os.path.realpath(path))
    finish_removals(parent)
    with locked(f"{parent}/{LOCK_NAME}"):
        for step in steps:
            folder, step_name = os.path.split(os.path.normpath(f"{parent}/{name}/{step}"))
            if LocalStepStorage(LocalPath(folder), rules).in_use(step_name):
                raise NotACheckpointError(
                    f"{folder}/{step_name}: it is in use: a job saves it, or has pinned it; "
                    "nothing was removed"
                )
        away = hidden_path(parent, name)
        syscalls.current().replace(f"{parent}/{name}", away)
        if list_tree(away) != listing:
            rename_back(away, f"{parent}/{name}")
            raise NotACheckpointError(
                f"{path}: it has changed since it was shown, and nothing was removed; try again"
            )
        names = RemovedNames([*listing.files, *listing.links], listing.folders)
        try:
            write_list(away, names)
        except BaseException as e:
            if getattr(e, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                rename_back(away, f"{parent}/{name}")
                raise
            unlisted, away = away, temporary_path(parent, name, "deleted")  # never renamed back
            syscalls.current().replace(unlisted, away)
            sync_directory(parent)
    remove_listed_names(away, names)
    if os.path.lexists(away):
        remaining = [*list_tree(away).files][:_MAX_SHOWN]
        raise NotACheckpointError(
            f"{path}: not all of it could be removed: {away} still has "
            f"{first_names(remaining, _MAX_SHOWN) or 'directories'}"
        )
