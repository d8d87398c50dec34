"""The values of a database, by its keys: a walk over its B+tree, from file to file."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from itertools import takewhile

from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.ocdbt.data_files import DataFile
from cordwood.formats.ocdbt.envelope import MAX_NODE_BYTES
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME, parse_manifest
from cordwood.formats.ocdbt.nodes import NodeReference, OcdbtEntry, parse_node
from cordwood.formats.zarr.array_metadata import MAX_METADATA_BYTES
from cordwood.formats.zarr.key_values import KeyValues, ValueLocation, joined, require_plain
from cordwood.index import Source
from cordwood.io.open_files import naming
from cordwood.storage.readable_directory import ReadableDirectory, SizeOrKind

MAX_TREE_BYTES = 1 << 32  # of all nodes, decoded, and of all keys
INLINE_NAME = "values within the B+tree"  # the source that is not a file


class OcdbtValues(KeyValues):
    """The values of an OCDBT database.

    The bytes of the first source are the values that are stored in the nodes themselves.

    Attributes:
        keys: all keys, sorted.

    The constructor raises CorruptionError, FormatError and UnsupportedFormatError, which name the
    file.
    """

    def __init__(self, directory: ReadableDirectory) -> None:
        super().__init__(directory)
        self._numbers: dict[str, int] = {}
        self._sizes: dict[str, Mapping[str, SizeOrKind]] = {}
        self._locations: dict[str, ValueLocation] = {}
        self.sources = [Source(INLINE_NAME, 0)]
        data = directory.read(MANIFEST_NAME, limit_bytes=MAX_NODE_BYTES)
        with naming(f"{directory.name}/{MANIFEST_NAME}"):
            root = parse_manifest(data)
        inline = bytearray()
        self._last: bytes | None = None
        if root is not None:
            self._walk(root, inline)
        self.memory[0] = bytes(inline)
        self.sources[0] = Source(INLINE_NAME, len(inline))
        self.keys = list(self._locations)  # the order of code points is the order of UTF-8 bytes

    def metadata(self, array: str, name: str) -> bytes | None:
        location = self.find(array, name)
        if location is None:
            return None
        if location.length > MAX_METADATA_BYTES:
            raise LimitError(
                f"{name}: {location.length} bytes; expected at most {MAX_METADATA_BYTES}"
            )
        return self.read(location, 0, location.length)

    def find(self, array: str, name: str) -> ValueLocation | None:
        return self._locations.get(joined(array, name))

    def keys_below(self, array: str, pattern: re.Pattern[str]) -> set[str]:
        prefix = f"{array}/" if array else ""
        following = range(bisect_left(self.keys, prefix), len(self.keys))
        below = takewhile(lambda key: key.startswith(prefix), map(self.keys.__getitem__, following))
        return {key[len(prefix) :] for key in below if pattern.fullmatch(key, len(prefix))}

    def _walk(self, root: NodeReference, inline: bytearray) -> None:
        """Read all nodes, each once. Heights decrease from the root, so the walk ends."""
        seen = set()
        decoded = 0
        stack = [root]
        while stack:
            child = stack.pop()
            with naming(self._directory.name, within=self._directory.name):
                location = self._file(child.file, child.offset, child.length)
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
            with naming(where):
                node = parse_node(data, child)
                for entry in node.entries:
                    self._add(entry, node.data, inline)
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
            require_plain(path)
            folder, _, name = path.rpartition("/")
            if folder not in self._sizes:
                self._sizes[folder] = self._directory.sizes(folder or ".")
            size = self._sizes[folder].get(name)
            if not isinstance(size, int):
                what = "is missing" if size is None else "is not a regular file"
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
