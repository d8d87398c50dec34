"""A probe in a root, by which processes notice that their roots are one directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cordwood.storage.atomic_file import WritableFile
from cordwood.storage.directories import make_ancestors, scan_directory
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.file_locks import remove_unlocked
from cordwood.storage.paths import temporary_path, temporary_pattern

_NAME, _KIND = "steps", "probe"


@contextmanager
def root_probe(root: LocalPath) -> Iterator[str]:
    """Create a probe with a random name in a root during the block, which gets the name.

    The root is created, too. A probe of a killed process is removed. Raises OSError.
    """
    make_ancestors(root.text, [])
    stale = temporary_pattern(_NAME, _KIND)
    for each in scan_directory(root.text):
        if stale.fullmatch(each.name):
            with suppress(OSError):
                remove_unlocked(each.path)
    probe = WritableFile(temporary_path(root.text, _NAME, _KIND))
    try:
        probe.open()
        probe.lock()
        yield os.path.basename(probe.path)
    finally:
        probe.remove()
        probe.close()


def sees_probe(root: LocalPath, name: str) -> bool:
    """Return True if the probe of another process is in a root: both are one directory."""
    return os.path.lexists(f"{root.text}/{name}")
