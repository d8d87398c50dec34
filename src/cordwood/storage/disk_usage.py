"""The size and the modification time of a file or a directory, and its files that are linked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

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
    return sum(status.st_size for status in _files_in(path))


def linked_bytes(paths: Sequence[str]) -> list[int]:
    """Return for each of several directories the size of its files that are in an earlier one too.

    A file is in two directories if both have a hard link to it.
    """
    seen: set[tuple[int, int]] = set()
    sizes = []
    for path in paths:
        files = {(each.st_dev, each.st_ino): each.st_size for each in _files_in(path)}
        sizes.append(sum(size for file, size in files.items() if file in seen))
        seen.update(files)
    return sizes


def _files_in(path: str | os.PathLike[str]) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name))
            except OSError:  # a save has just removed it
                continue


def modified_seconds(path: str | os.PathLike[str]) -> float | None:
    """Return the modification time of a path, in seconds since 1970; None for a URL."""
    path = local_or_url(path)
    if parse_url(path) is not None:
        return None
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
