"""Scratch directories: the files that a function writes, or that it reads, with nothing kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def files_in_scratch(write: Callable[[str], None]) -> dict[str, bytes]:
    """Return the files that a function writes into an empty directory, by their paths in it."""
    with tempfile.TemporaryDirectory(prefix="cordwood-") as folder:
        write(folder)
        files = {}
        for above, _, names in os.walk(folder):
            for name in sorted(names):
                path = os.path.join(above, name)
                with open(path, "rb") as file:
                    files[os.path.relpath(path, folder)] = file.read()
        return dict(sorted(files.items()))


def read_in_scratch(files: Mapping[str, bytes], read: Callable[[str], T]) -> T:
    """Return what a function returns that gets a directory with some files.

    Args:
        files: the contents of the files, by their paths.
        read: gets the path of the directory, which is removed when it returns.

    Raises ValueError for a path that leads out of the directory.
    """
    with tempfile.TemporaryDirectory(prefix="cordwood-") as folder:
        for path, data in files.items():
            destination = os.path.normpath(os.path.join(folder, path))
            if not destination.startswith(f"{folder}/"):
                raise ValueError(f"{path!r}: expected a path inside the item")
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            with open(destination, "wb") as file:
                file.write(data)
        return read(folder)
