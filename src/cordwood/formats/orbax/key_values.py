"""The values of a checkpoint by their keys: files of these names, or an OCDBT database.

A key is the name of an array and, after a slash, of its metadata or of one of its chunks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.orbax.ocdbt import (
    MANIFEST_NAME,
    MAX_NODE_BYTES,
    DataFile,
    NodeReference,
    OcdbtEntry,
    parse_manifest,
    parse_node,
)
from cordwood.index import Source
from cordwood.storage.directory_reader import ReadableDirectory

# The errors that callers raise again with the name of the file or the leaf.
READ_ERRORS = (CorruptionError, FormatError, UnsupportedFormatError)
INLINE_NAME = "values within the B+tree"  # the source that is not a file
_CHUNK_DIRECTORY = re.compile("c|[0-9]+")  # the name of a directory that holds chunks
MAX_PATH_BYTES = 4000  # Linux takes 4096
MAX_TREE_BYTES = 1 << 32  # of all nodes, decoded, and of all keys


class ValueLocation(NamedTuple):
    """The location of the bytes of a value."""

    source: int  # position in `sources`
    offset: int
    length: int


class KeyValues(Protocol):
    """The values of one tree. Errors name the file; the caller adds the key."""

    @property
    def sources(self) -> list[Source]:
        """The sources that locations refer to. The list may grow with every `find`."""
        ...

    def find(self, key: str) -> ValueLocation | None:
        """Return the location of a value, or None."""
        ...

    def keys_below(self, name: str, pattern: re.Pattern[str]) -> set[str]:
        """Return the keys below `name/` that match `pattern`, without that prefix."""
        ...

    def read(self, location: ValueLocation, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a value."""
        ...


class FileValues:
    """Values of which each is a file."""

    def __init__(self, directory: ReadableDirectory) -> None:
        self.sources: list[Source] = []
        self._directory = directory
        self._folders: dict[str, Mapping[str, int]] = {}

    def find(self, key: str) -> ValueLocation | None:
        _require_plain(key)
        folder, _, name = key.rpartition("/")
        size = self._sizes(folder).get(name)
        if size is None:
            return None
        if size < 0:
            raise CorruptionError(
                f"{key}: expected a regular file, found a symbolic link, directory or device"
            )
        self.sources.append(Source(key, size))
        return ValueLocation(len(self.sources) - 1, 0, size)

    def keys_below(self, name: str, pattern: re.Pattern[str]) -> set[str]:
        keys = set()
        pending = [""]
        while pending:
            parent = pending.pop()
            for key, size in self._sizes(f"{name}/{parent}".strip("/")).items():
                path = parent + key
                if pattern.fullmatch(path):
                    keys.add(path)
                elif size < 0 and _CHUNK_DIRECTORY.fullmatch(key):
                    pending.append(f"{path}/")
        return keys

    def read(self, location: ValueLocation, start: int, stop: int) -> bytes:
        source = self.sources[location.source]
        file = self._directory.file(source.name, source.size_bytes)
        return file.read(location.offset + start, stop - start)

    def _sizes(self, folder: str) -> Mapping[str, int]:
        if folder not in self._folders:
            exists = not folder or self._directory.has(folder)
            self._folders[folder] = self._directory.sizes(folder or ".") if exists else {}
        return self._folders[folder]


class OcdbtValues:
    """The values of an OCDBT database.

    Attributes:
        inline: the bytes of the first source: the values that are stored in the nodes themselves.
        keys: all keys, sorted.
        checked_bytes: the size of all nodes, which carry checksums.

    The constructor raises CorruptionError, FormatError and UnsupportedFormatError, which name the
    file.
    """

    def __init__(self, directory: ReadableDirectory) -> None:
        self._directory = directory
        self._numbers: dict[str, int] = {}
        self._sizes: dict[str, Mapping[str, int]] = {}
        self._locations: dict[str, ValueLocation] = {}
        self.sources = [Source(INLINE_NAME, 0)]
        data = directory.read(MANIFEST_NAME, limit_bytes=MAX_NODE_BYTES)
        try:
            root = parse_manifest(data)
        except READ_ERRORS as e:
            raise type(e)(f"{directory.name}/{MANIFEST_NAME}: {e}") from e
        self.checked_bytes = 0
        inline = bytearray()
        self._last: bytes | None = None
        if root is not None:
            self._walk(root, inline)
        self.inline = bytes(inline)
        self.sources[0] = Source(INLINE_NAME, len(inline))
        self.keys = list(self._locations)  # the order of code points is the order of UTF-8 bytes

    def find(self, key: str) -> ValueLocation | None:
        return self._locations.get(key)

    def keys_below(self, name: str, pattern: re.Pattern[str]) -> set[str]:
        prefix = f"{name}/" if name else ""
        return {rest for rest in self._rests_after(prefix) if pattern.fullmatch(rest)}

    def _rests_after(self, prefix: str) -> Iterator[str]:
        for i in range(bisect_left(self.keys, prefix), len(self.keys)):
            if not self.keys[i].startswith(prefix):
                break
            yield self.keys[i][len(prefix) :]

    def read(self, location: ValueLocation, start: int, stop: int) -> bytes:
        source = self.sources[location.source]
        if location.source == 0:
            return self.inline[location.offset + start : location.offset + stop]
        file = self._directory.file(source.name, source.size_bytes)
        return file.read(location.offset + start, stop - start)

    def _walk(self, root: NodeReference, inline: bytearray) -> None:
        """Read all nodes, each once. Heights decrease from the root, so the walk ends."""
        seen = set()
        decoded = 0
        stack = [root]
        while stack:
            child = stack.pop()
            try:
                location = self._file(child.file, child.offset, child.length)
            except READ_ERRORS as e:
                name, text = self._directory.name, str(e)
                raise type(e)(text if text.startswith(name) else f"{name}: {text}") from e
            source = self.sources[location.source]
            where = f"{self._directory.name}/{source.name}: the node at byte {child.offset}"
            if location.length > MAX_NODE_BYTES:
                raise LimitError(
                    f"{where}: {location.length} bytes; expected at most {MAX_NODE_BYTES} "
                    "(MAX_NODE_BYTES)"
                )
            if location in seen:
                raise FormatError(f"{where} is referred to twice")
            seen.add(location)
            data = self.read(location, 0, location.length)
            try:
                node = parse_node(data, child)
                for entry in node.entries:
                    self._add(entry, node.data, inline)
            except READ_ERRORS as e:
                raise type(e)(f"{where}: {e}") from e
            self.checked_bytes += len(data)
            decoded += len(node.data) + sum([len(entry.key) for entry in node.entries])
            if decoded > MAX_TREE_BYTES:
                raise LimitError(f"{where}: more than {MAX_TREE_BYTES} bytes of nodes and keys")
            stack += reversed(node.children)

    def _add(self, entry: OcdbtEntry, data: bytes, inline: bytearray) -> None:
        key = _text(entry.key)
        if self._last is not None and entry.key <= self._last:
            raise FormatError(f"the key {key!r:.200} does not come after {self._last!r:.200}")
        self._last = entry.key
        if entry.file is None:
            self._locations[key] = ValueLocation(0, len(inline), entry.length)
            inline += data[entry.offset : entry.offset + entry.length]
        else:
            self._locations[key] = self._file(entry.file, entry.offset, entry.length)

    def _file(self, file: DataFile, offset: int, length: int) -> ValueLocation:
        """Return the location of bytes in a file, after checking that the file holds them."""
        path = _text(file.path)
        number = self._numbers.get(path)
        if number is None:
            _require_plain(path)
            folder, _, name = path.rpartition("/")
            if folder not in self._sizes:
                self._sizes[folder] = self._directory.sizes(folder or ".")
            size = self._sizes[folder].get(name, -1)
            if size < 0:
                what = "is missing" if name not in self._sizes[folder] else "is not a regular file"
                raise CorruptionError(
                    f"{self._directory.name}/{path} {what}: the checkpoint is incomplete; copy it "
                    "again, or load another one"
                )
            number = self._numbers[path] = len(self.sources)
            self.sources.append(Source(path, size))
        size = self.sources[number].size_bytes
        if offset + length > size:
            raise TruncatedError(
                f"{self._directory.name}/{path}: expected {length} bytes at offset {offset}, but "
                f"the file ends at {size}; copy it again, or load another one"
            )
        return ValueLocation(number, offset, length)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise FormatError(f"{data!r:.200} is not UTF-8") from e


def _require_plain(path: str) -> None:
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
