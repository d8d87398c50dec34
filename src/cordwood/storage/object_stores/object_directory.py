"""The objects below a URL as a directory, as formats of other tools read one.

It is listed once, so that what lies in it stays the same while it is open.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Self, TypeVar

from cordwood.errors import CorruptionError
from cordwood.io.open_files import Closable, ReadableFile
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.list_objects import list_objects
from cordwood.storage.object_stores.object_file import ObjectFile
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.odd_keys import odd_key_error
from cordwood.storage.readable_directory import FOLDER, SizeOrKind

T = TypeVar("T")


class ObjectDirectory(Closable):
    """The objects below a URL.

    Args:
        url: the URL.
        sizes: the objects by their names below it, with their sizes; None: they are listed, by a
            request for each 1,000.
        skipped: the folders of which the store has not listed all objects, each with the odd key
            that kept it from that.

    Raises FileNotFoundError if there is no object; what lists such a folder raises StorageError.
    """

    def __init__(
        self,
        url: Url,
        sizes: Mapping[str, int] | None = None,
        skipped: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = url.address
        self._url = url
        self._store = ObjectStore(url)
        if sizes is None:
            skipped = odd_keys = dict[str, str]()
            entries = list_objects(self._store, may_skip=lambda _: True, skipped=odd_keys)
            sizes = {each.name: each.size_bytes for each in entries}
        self._skipped = skipped
        if not sizes and not skipped:
            raise FileNotFoundError(errno.ENOENT, "there is nothing", self.name)
        self._folders = _folders(sizes, skipped)

    def sizes(self, path: str) -> Mapping[str, SizeOrKind]:
        """Return the entries of a directory in it. Raises CorruptionError if there is none."""
        self._require_listed(path)
        entries = self._folders.get("" if path == "." else path)
        if entries is None:
            raise self._missing(path)
        return entries

    def folders(self, path: str) -> Sequence[str]:
        return sorted(name for name, size in self.sizes(path).items() if size == FOLDER)

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if self._skipped_around(folder) is not None:
            return self._store.find(path) is not None
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
        self._require_listed(path)
        files = {
            f"{folder}/{name}": size
            for folder, entries in self._folders.items()
            for name, size in entries.items()
            if isinstance(size, int)
        }
        sizes, skipped = below(f"{path}/", files), below(f"{path}/", self._skipped)
        if not sizes and not skipped:
            raise self._missing(path)
        return type(self)(self._url.child(path), sizes, skipped)

    def contains(self, name: str) -> bool:
        """Return whether a file of that name is anywhere in it."""
        return any(name in entries for entries in self._folders.values())

    def _skipped_around(self, path: str) -> str | None:
        """Return the folder, or one around it, that was not listed; None if all is listed."""
        for folder in self._skipped:
            if f"{path}/".startswith(f"{folder}/"):
                return folder
        return None

    def _require_listed(self, path: str) -> None:
        """Raise StorageError if a folder, or one around it, was not listed."""
        folder = self._skipped_around(path)
        if folder is not None:
            raise odd_key_error(self._skipped[folder], f"{self.name}/{folder}")

    def _missing(self, path: str) -> CorruptionError:
        return CorruptionError(
            f"{self.name}/{path} is missing: the checkpoint is incomplete; copy or save it again"
        )


def below(begin: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values whose names have this beginning, by the rest of the name."""
    return {
        name.removeprefix(begin): value for name, value in values.items() if name.startswith(begin)
    }


def _folders(
    sizes: Mapping[str, int], skipped: Collection[str]
) -> dict[str, dict[str, SizeOrKind]]:
    """Return the entries of each directory by its path; "" for the directory itself.

    A key with an empty name in it, such as `a//b`, is no path, and is left out.
    """
    folders: dict[str, dict[str, SizeOrKind]] = {"": {}}
    entries: dict[str, SizeOrKind] = {**sizes, **dict.fromkeys(skipped, FOLDER)}
    for path, size in entries.items():
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
