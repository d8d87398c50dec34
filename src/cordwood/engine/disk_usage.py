"""How large a file or a directory is."""

from __future__ import annotations

import os

from cordwood.engine.urls import parse_url

__all__ = ["size_on_disk"]


def size_on_disk(path: str | os.PathLike[str]) -> int:
    """The sizes of all files at a path together; 0 for a URL, or where nothing is."""
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
            except OSError:  # a save has removed it meanwhile
                continue
    return total
