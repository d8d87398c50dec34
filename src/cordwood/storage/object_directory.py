"""The objects below a URL as a directory, as formats of other tools read one.

It is listed once, so that what lies in it stays the same while it is open.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Self

from cordwood.errors import CorruptionError
from cordwood.io.open_files import Closable, ReadableFile
from cordwood.storage.directory_reader import FOLDER
from cordwood.storage.object_file import ObjectFile
from cordwood.storage.object_store_client import ObjectStore
from cordwood.storage.paths import Url


class ObjectDirectory(Closable):
    """The objects below a URL.

    Args:
        url: the URL.
        sizes: the objects by their names below it, with their sizes; None: they are listed, by a
            request for each 1,000.

    Raises FileNotFoundError if there is no object.
    """

    def __init__(self, url: Url, sizes: Mapping[str, int] | None = None) -> None:
        self.name = str(url)
        self._url = url
        self._store = ObjectStore(url)
        if sizes is None:
            sizes = {
                each.name: each.size_bytes for each in self._store.entries(may_skip=lambda _: True)
            }
        if not sizes:
            raise FileNotFoundError(errno.ENOENT, "there is nothing", self.name)
        self._folders = _folders(sizes)

    def sizes(self, path: str) -> Mapping[str, int]:
        """Return the entries of a directory in it. Raises CorruptionError if there is none."""
        entries = self._folders.get("" if path == "." else path)
        if entries is None:
            raise self._missing(path)
        return entries

    def folders(self, path: str) -> Sequence[str]:
        return sorted(name for name, size in self.sizes(path).items() if size == FOLDER)

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._folders.get(folder, {})

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        data = self._store.read(path, limit_bytes=limit_bytes).data if self.has(path) else None
        if data is None:
            raise self._missing(path)
        return data

    def file(self, path: str, size_bytes: int) -> ReadableFile:
        return ObjectFile(self._store, path, size_bytes)

    def owning_file(self, path: str, size_bytes: int) -> ReadableFile:
        return self.file(path, size_bytes)

    def folder(self, path: str) -> Self:
        """Return a directory in it. Raises CorruptionError if there is none."""
        begin = f"{path}/"
        below = {
            f"{folder}/{name}".removeprefix(begin): size
            for folder, entries in self._folders.items()
            if folder == path or folder.startswith(begin)
            for name, size in entries.items()
            if size != FOLDER
        }
        if not below:
            raise self._missing(path)
        return type(self)(self._url.child(path), below)

    def contains(self, name: str) -> bool:
        """Return whether a file of that name is anywhere in it."""
        return any(name in entries for entries in self._folders.values())

    def _missing(self, path: str) -> CorruptionError:
        return CorruptionError(
            f"{self.name}/{path} is missing: the checkpoint is incomplete; copy or save it again"
        )


def _folders(sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the entries of each directory by its path; "" for the directory itself.

    A key with an empty name in it, such as `a//b`, is no path, and is left out.
    """
    folders: dict[str, dict[str, int]] = {"": {}}
    for path, size in sizes.items():
        names = path.split("/")
        if not all(names):
            continue
        above = ""
        for name in names[:-1]:
            inner = f"{above}/{name}" if above else name
            folders.setdefault(above, {}).setdefault(name, FOLDER)
            above = inner
        folders.setdefault(above, {})[names[-1]] = size
    return folders
