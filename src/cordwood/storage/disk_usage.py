"""The size and the modification time of a file or a directory."""

from __future__ import annotations

import os

from cordwood.storage.urls import local_or_url, parse_url


def size_on_disk(path: str | os.PathLike[str]) -> int:
    """Return the total size of all files at a path; 0 for a URL, or if there is nothing."""
    path = local_or_url(path)
    if parse_url(path) is not None:
        return 0
    try:
        total = os.stat(path).st_size
    except OSError:
        return 0
    if not os.path.isdir(path):
        return total
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # a save has just removed it
                continue
    return total


def modified_seconds(path: str | os.PathLike[str]) -> float | None:
    """Return the modification time of a path, in seconds since 1970; None for a URL."""
    path = local_or_url(path)
    if parse_url(path) is not None:
        return None
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
