"""A second name for a file that never changes, in another directory."""

from __future__ import annotations

from cordwood.storage.directories import sync_directory
from cordwood.storage.locks.file_locks import link_under_shared_lock, unlock


def link_file(source: str, folder: str, name: str) -> bool:
    """Link a file into a directory, durably; return False if that cannot be done.

    Args:
        source: the file; not a symlink.
        folder: the directory, which exists.
        name: the new name. It may already be a link to the same file.
    """
    try:
        fd = link_under_shared_lock(source, f"{folder}/{name}")
        if fd is None:
            return False
        try:
            sync_directory(folder)
        finally:
            unlock(fd)
    except OSError:
        return False
    return True
