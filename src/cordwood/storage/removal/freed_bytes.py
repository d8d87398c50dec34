"""The bytes that the removal of directories frees on a disk, where files may have other names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from cordwood.storage.locations import LocalPath


def freed_bytes(directories: Iterable[LocalPath]) -> int:
    """Return the size of the files in directories that have no name elsewhere, in bytes.

    A file that a step shares with others by hard links is freed with the last of its names.
    """
    names: dict[tuple[int, int], int] = {}  # of each file in the directories: how many
    sizes: dict[tuple[int, int], tuple[int, int]] = {}  # its size, and how many names it has
    for directory in directories:
        for folder, _, files in os.walk(directory.text):
            for file in files:
                with suppress(FileNotFoundError):
                    status = os.lstat(f"{folder}/{file}")
                    key = status.st_dev, status.st_ino
                    names[key] = names.get(key, 0) + 1
                    sizes[key] = status.st_size, status.st_nlink
    return sum([size for key, (size, links) in sizes.items() if names[key] >= links])
