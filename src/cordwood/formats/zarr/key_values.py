"""The metadata and chunks of arrays as values of keys, each of which is a file.

A key is the path of an array and, after a slash, the name of its metadata or of one of its chunks.
`formats.ocdbt.values` has the values of a database, `unstored_chunks` those that no key has.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.encoding.digests import BytesLike
from cordwood.errors import CorruptionError, FormatError, LimitError
from cordwood.formats.zarr.array_metadata import MAX_METADATA_BYTES
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME
from cordwood.index import Source
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import ReadableFile
from cordwood.storage.readable_directory import (
    FOLDER,
    NotAFile,
    OpenDirectory,
    ReadableDirectory,
    SizeOrKind,
)

MAX_PATH_BYTES = 4000  # Linux takes 4096
_CHUNK_DIRECTORY = re.compile("c|[0-9]+")  # the name of a directory that holds chunks


class ValueLocation(NamedTuple):
    """The location of the bytes of a value."""

    source: int  # position in `sources`
    offset: int
    length: int


class KeyValues(ABC):
    """The values of one tree. Errors name the file; the caller adds the array.

    Args:
        directory: the directory that the paths of files are relative to.

    Attributes:
        sources: the sources that locations refer to. The list may grow with every `find`.
        memory: the bytes of those that are not files, by the number of the source.
        checked_bytes: the size of what was read and has checksums.
        metadata_bytes: the size of the metadata of arrays, in files that are no sources.
    """

    def __init__(self, directory: ReadableDirectory) -> None:
        self.sources: list[Source] = []
        self.memory: dict[int, BytesLike] = {}
        self.checked_bytes = self.metadata_bytes = 0
        self._directory = directory

    @abstractmethod
    def metadata(self, array: str, name: str) -> bytes | None:
        """Return the metadata of that name, or None. It is what is read first of an array."""

    @abstractmethod
    def keys_below(self, array: str, pattern: re.Pattern[str]) -> set[str]:
        """Return the names of values of an array that match `pattern`."""

    @abstractmethod
    def find(self, array: str, name: str) -> ValueLocation | None:
        """Return the location of a value, or None."""

    @property
    def stored_bytes(self) -> int:
        """The size of the files, also of those that are no sources."""
        sizes = [each.size_bytes for n, each in enumerate(self.sources) if n not in self.memory]
        return sum(sizes) + self.metadata_bytes

    def open_sources(self, directory: OpenDirectory) -> list[ReadableFile]:
        """Return the sources as files that own the directory; it is closed if none of them does."""
        files: list[ReadableFile] = [
            MemoryFile(self.memory[number], f"{directory.name}: {source.name}")
            if number in self.memory
            else directory.owning_file(source.name, source.size_bytes)
            for number, source in enumerate(self.sources)
        ]
        if len(files) == len(self.memory):
            directory.close()
        return files

    def read(self, location: ValueLocation, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a value."""
        number, offset, _ = location
        if number in self.memory:
            return bytes(self.memory[number][offset + start : offset + stop])
        source = self.sources[number]
        file = self._directory.file(source.name, source.size_bytes)
        return file.read(offset + start, stop - start)


class FileValues(KeyValues):
    """Values of which each is a file.

    Args:
        directory: the directory that the paths of arrays are relative to.
        are_listed: paths of arrays come from an index, and are checked; each is a directory.
            Otherwise they may be anything, and what is not there is None.
    """

    def __init__(self, directory: ReadableDirectory, *, are_listed: bool) -> None:
        super().__init__(directory)
        self._are_listed = are_listed
        self._array: str | None = None  # the array that was asked for last
        self._folders: dict[str, Mapping[str, SizeOrKind]] = {}  # of that array

    def metadata(self, array: str, name: str) -> bytes | None:
        if array != self._array:
            self._array, self._folders = array, {}
        path = joined(array, name)
        if not self._are_listed:
            require_plain(path)
        if self._size(path, name) is None:
            return None
        data = self._directory.read(path, limit_bytes=MAX_METADATA_BYTES)
        self.metadata_bytes += len(data)
        return data

    def keys_below(self, array: str, pattern: re.Pattern[str]) -> set[str]:
        keys = set()
        pending = [""]
        while pending:
            parent = pending.pop()
            sizes = self._sizes(joined(array, parent.rstrip("/")))
            if parent and METADATA_NAME in sizes:
                continue  # another array, whose path is longer
            for name, size in sizes.items():
                key = parent + name
                if pattern.fullmatch(key):
                    keys.add(key)
                elif size == FOLDER and "/" in pattern.pattern and _CHUNK_DIRECTORY.fullmatch(name):
                    pending.append(f"{key}/")
        return keys

    def find(self, array: str, name: str) -> ValueLocation | None:
        path = joined(array, name)
        size = self._size(path, name)
        if size is None:
            return None
        self.sources.append(Source(path, size))
        return ValueLocation(len(self.sources) - 1, 0, size)

    def _size(self, path: str, name: str) -> int | None:
        folder, _, last = path.rpartition("/")
        size = self._sizes(folder).get(last)
        if isinstance(size, NotAFile):
            raise CorruptionError(
                f"{name if self._are_listed else path}: expected a regular file, found a symbolic "
                "link, directory or device"
            )
        return size

    def _sizes(self, folder: str) -> Mapping[str, SizeOrKind]:
        sizes = self._folders.get(folder)
        if sizes is None:
            exists = self._are_listed or not folder or self._directory.has(folder)
            sizes = self._directory.sizes(folder or ".") if exists else {}
            self._folders[folder] = sizes
        return sizes


def joined(array: str, name: str) -> str:
    """Return a key; "" stands for the directory itself, which may be an array."""
    return f"{array}/{name}" if array and name else array or name


def require_plain(path: str) -> None:
    """Raise FormatError or LimitError unless a path is short and stays inside the directory."""
    names = path.split("/")
    if "\0" in path or not all(name and name not in (".", "..") for name in names):
        raise FormatError(f"{path!r:.200} is not a path of plain names")
    try:
        longest = max(len(name.encode()) for name in names)
        size = len(path.encode())
    except UnicodeEncodeError as e:
        raise FormatError(f"{path!r:.200} holds a lone surrogate") from e
    if size > MAX_PATH_BYTES:
        raise LimitError(
            f"{path!r:.200}: a path of {size} bytes; expected at most {MAX_PATH_BYTES}"
        )
    if longest > 255:
        raise FormatError(f"{path!r:.200} is too long for a file name")
