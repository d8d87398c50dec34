"""The entries of directories that may be removed meanwhile, or not be readable."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cordwood.errors import CorruptionError
from cordwood.storage.readable_directory import ReadableDirectory, SizeOrKind


def has_entry(directory: ReadableDirectory, path: str) -> bool:
    """Return whether a file exists; False in an unreadable directory such as lost+found."""
    try:
        return directory.has(path)
    except PermissionError:
        return False


def sizes_in(directory: ReadableDirectory, path: str) -> Mapping[str, SizeOrKind]:
    """Return the entries of a directory; {} if it has been removed, or is not readable."""
    with suppress(CorruptionError, PermissionError):
        return directory.sizes(path)
    return {}
