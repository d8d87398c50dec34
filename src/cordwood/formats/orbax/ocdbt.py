"""OCDBT, TensorStore's database of keys and values: its manifest and the nodes of its B+tree.

The format: https://google.github.io/tensorstore/kvstore/ocdbt/index.html

One file, for its two parts are one format: `OcdbtValues` walks the tree from file to file, and the
functions below it parse one node, bytes in, values out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.zarr.array_metadata import MAX_METADATA_BYTES
from cordwood.formats.zarr.array_reader import ends_in_crc32c
from cordwood.formats.zarr.key_values import KeyValues, ValueLocation, joined, require_plain
from cordwood.index import Source
from cordwood.io.open_files import naming
from cordwood.message_text import counted
from cordwood.storage.readable_directory import ReadableDirectory

MANIFEST_NAME = "manifest.ocdbt"
MAX_NODE_BYTES = 1 << 28  # decoded; what Orbax writes stays below 1e8
MAX_TREE_BYTES = 1 << 32  # of all nodes, decoded, and of all keys
INLINE_NAME = "values within the B+tree"  # the source that is not a file
_MANIFEST_MAGIC = 0x0CDB3A2A
_NODE_MAGIC = 0x0CDB20DE
MAX_KEY_BYTES = 1 << 13  # of one key or path
_MAX_KEYS_BYTES = 1 << 29  # of all keys of a node
# Limits of the decompressed size of a node and of the size of its keys: the sum of a constant and
# a multiple of the stored size.
_MIN_LIMIT_BYTES = 1 << 22
_MAX_RATIO = 1000
_STEP_BYTES = 1 << 20
_VARINT_BYTES = 10  # the longest encoding of 64 bits


class DataFile(NamedTuple):
    """A file that a node refers to, relative to the database."""

    base: bytes  # paths in the nodes of this file are relative to it
    path: bytes  # the whole path


class NodeReference(NamedTuple):
    """A reference to a node."""

    file: DataFile
    offset: int
    length: int
    height: int
    prefix: bytes  # of all keys in the node


class OcdbtEntry(NamedTuple):
    """A key and the location of its value: in the node itself (file is None), or in a file."""

    key: bytes
    file: DataFile | None
    offset: int  # in the file, or in the decoded node
    length: int


class BTreeNode(NamedTuple):
    """A node: an inner node has children, a leaf has entries."""

    children: Sequence[NodeReference]
    entries: Sequence[OcdbtEntry]
    data: bytes  # decoded; holds the values of entries without a file


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
        self._sizes: dict[str, Mapping[str, int]] = {}
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


def parse_manifest(data: bytes) -> NodeReference | None:
    """Return the root of the newest version, or None if the database is empty.

    Raises:
        CorruptionError: the manifest does not match its checksum.
        FormatError: it is not a manifest.
        UnsupportedFormatError: it is of a newer version, or its versions are in other files.
    """
    body = _Body(_unwrap(data, _MANIFEST_MAGIC), len(data))
    body.skip(16)  # the UUID of the database
    if body.varint() != 0:
        raise UnsupportedFormatError("numbered manifests are not read; expected a single one")
    body.varints(2)  # the size limits of the writer
    body.skip(1)  # the arity of the version tree
    if body.varint():
        body.skip(4)  # the compression level
    files = body.files(b"")
    count = body.varint()
    generations = body.varints(count)
    heights = body.take(count)
    locations = [body.varints(count) for _ in range(3)]
    for _ in range(3):
        body.varints(count)  # statistics
    body.skip(8 * count)  # when each was written
    older = body.varint()  # nodes of the version tree
    for _ in range(5):
        body.varints(older)  # generations, locations and numbers of versions
    body.skip(9 * older)  # times and heights
    body.end()
    if not count:
        return None
    newest = max(range(count), key=generations.__getitem__)
    number, offset, length = [column[newest] for column in locations]
    if not length:
        return None
    return NodeReference(_at(files, number), offset, length, heights[newest], b"")


def parse_node(data: bytes, child: NodeReference) -> BTreeNode:
    """Parse and check the node that `child` refers to.

    Raises as `parse_manifest`; LimitError for a node of more than MAX_NODE_BYTES, for a key of more
    than MAX_KEY_BYTES, and for keys that are too large in all for the stored size of the node.
    """
    decoded = _unwrap(data, _NODE_MAGIC)
    body = _Body(decoded, len(data))
    height = body.take(1)[0]
    if height != child.height:
        raise FormatError(f"expected a node of height {child.height}, found one of {height}")
    files = body.files(child.file.base)
    count = body.varint()
    lengths = [0, *body.varints(max(0, count - 1))], body.varints(count)
    body.require_room(count * len(child.prefix))
    if height:
        shared = body.varints(count)
        keys = _read_keys(body, *lengths)
        numbers, offsets, sizes = [body.varints(count) for _ in range(3)]
        for _ in range(3):
            body.varints(count)  # statistics
        body.end()
        _require_rising(keys)
        children = []
        for key, common, number, offset, size in zip(
            keys, shared, numbers, offsets, sizes, strict=True
        ):
            if common > len(key):
                raise FormatError(f"a prefix of {common} bytes of the key {key!r:.80}")
            prefix = child.prefix + key[:common]
            children.append(NodeReference(_at(files, number), offset, size, height - 1, prefix))
        return BTreeNode(children, (), decoded)
    keys = [child.prefix + key for key in _read_keys(body, *lengths)]
    sizes, kinds = body.varints(count), body.varints(count)
    if not set(kinds) <= {0, 1}:
        raise FormatError("a value is neither in its node nor in a file")
    numbers, offsets = body.varints(sum(kinds)), body.varints(sum(kinds))
    locations = zip(numbers, offsets, strict=True)
    entries = []
    for key, size, kind in zip(keys, sizes, kinds, strict=True):
        if kind:
            number, offset = next(locations)
            entries.append(OcdbtEntry(key, _at(files, number), offset, size))
        else:
            entries.append(OcdbtEntry(key, None, body.skip(size), size))
    body.end()
    _require_rising(keys)
    return BTreeNode((), entries, decoded)


def _require_rising(keys: Sequence[bytes]) -> None:
    for key, following in pairwise(keys):
        if key >= following:
            raise FormatError(f"the key {following!r:.200} does not come after {key!r:.200}")


def _at(files: Sequence[DataFile], number: int) -> DataFile:
    if number >= len(files):
        raise FormatError(f"file {number} of {len(files)} is referred to")
    return files[number]


def _unwrap(data: bytes, magic: int) -> bytes:
    """Return the decompressed bytes between header and checksum."""
    if int.from_bytes(data[:4], "big") != magic:
        raise FormatError(
            f"expected to begin with {magic:08x}, found {data[:4].hex() or 'nothing'}"
        )
    length = int.from_bytes(data[4:12], "little")
    if length != len(data):
        raise FormatError(f"expected {length} bytes by its header, found {len(data)}")
    if not ends_in_crc32c(data):
        raise CorruptionError("it does not match its checksum: it is damaged; copy it again")
    header = _Body(data[:-4], len(data))
    header.skip(12)
    version, compression = header.varint(), header.varint()
    if version or compression > 1:
        raise UnsupportedFormatError(
            f"version {version}, compression {compression}; expected version 0 and compression 0 "
            "or 1 (zstd)"
        )
    rest = header.rest()
    if not compression:
        return rest
    import zstandard

    limit = min(MAX_NODE_BYTES, _MIN_LIMIT_BYTES + _MAX_RATIO * len(data))
    decoded = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(rest) as reader:
            while len(decoded) <= limit and (more := reader.read(_STEP_BYTES)):
                decoded += more
    except zstandard.ZstdError as e:
        raise CorruptionError(f"it cannot be decompressed: {e}") from e
    if len(decoded) > limit:
        raise LimitError(
            f"it decompresses to more than {limit} bytes, the limit for {len(data)} stored bytes"
        )
    return bytes(decoded)


class _Body:
    """A cursor that reads bytes from front to back.

    Args:
        data: the bytes to read.
        stored_bytes: the size of the node on disk, which limits the size of its keys.
    """

    def __init__(self, data: bytes, stored_bytes: int) -> None:
        self._data = data
        self._at = 0
        self._limit = min(_MAX_KEYS_BYTES, _MIN_LIMIT_BYTES + _MAX_RATIO * stored_bytes)

    def end(self) -> None:
        """Raise FormatError if more bytes follow."""
        extra = len(self._data) - self._at
        if extra:
            raise FormatError(
                f"expected the end at {self._at}, found {counted(extra, 'more byte')}"
            )

    def require_room(self, size_bytes: int) -> None:
        """Raise LimitError if keys of `size_bytes` are too large for the stored size."""
        if size_bytes > self._limit:
            raise LimitError(
                f"keys and paths of {size_bytes} bytes in one node; expected at most {self._limit} "
                "for its size"
            )

    def skip(self, count: int) -> int:
        """Skip `count` bytes; return the offset of the first."""
        start = self._at
        if count > len(self._data) - start:
            raise FormatError(
                f"it ends too early: {count} bytes expected at {start} of {len(self._data)}"
            )
        self._at += count
        return start

    def take(self, count: int) -> bytes:
        start = self.skip(count)
        return self._data[start : start + count]

    def rest(self) -> bytes:
        return self._data[self._at :]

    def varint(self) -> int:
        return self.varints(1)[0]

    def varints(self, count: int) -> list[int]:
        """Read `count` numbers of seven bits per byte, the lowest bits first."""
        if count > len(self._data) - self._at:
            raise FormatError(f"it ends too early: {count} numbers expected at {self._at}")
        data = np.frombuffer(self._data, np.uint8)[self._at : self._at + _VARINT_BYTES * count]
        ends = np.flatnonzero(data < 0x80)[:count]
        if len(ends) < count:
            raise FormatError(f"expected {count} numbers of up to 64 bits at {self._at}")
        if not count:
            return []
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        longest = int(lengths.max())
        if longest > _VARINT_BYTES or data[ends[lengths == _VARINT_BYTES]].max(initial=0) > 1:
            raise FormatError(f"a number of more than 64 bits at {self._at}")
        values: Any = np.zeros(count, np.uint64)
        for i in range(longest):
            longer = np.flatnonzero(lengths > i)
            part = data[starts[longer] + i] & 0x7F
            values[longer] |= part.astype(np.uint64) << np.uint64(7 * i)
        self._at += int(ends[-1]) + 1
        numbers: list[int] = values.tolist()
        return numbers

    def files(self, base: bytes) -> list[DataFile]:
        """Read a table of data files, whose paths are relative to `base`."""
        count = self.varint()
        shared = [0, *self.varints(max(0, count - 1))]
        lengths, bases = self.varints(count), self.varints(count)
        paths = _read_keys(self, shared, lengths)
        return [
            DataFile(base + path[:length], base + path)
            for path, length in zip(paths, bases, strict=True)
        ]


def _read_keys(body: _Body, shared: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Read strings, each of which shares a prefix with the string before it."""
    if not lengths:
        return []
    body.require_room(sum(shared) + sum(lengths))
    longest = max(map(int.__add__, shared, lengths))
    if longest > MAX_KEY_BYTES:
        raise LimitError(f"a key of {longest} bytes; expected at most {MAX_KEY_BYTES}")
    suffixes = body.take(sum(lengths))
    keys: list[bytes] = []
    last = b""
    for common, stop, length in zip(shared, accumulate(lengths), lengths, strict=True):
        if common > len(last):
            raise FormatError(f"{common} bytes of {last!r:.80} are referred to")
        last = last[:common] + suffixes[stop - length : stop]
        keys.append(last)
    return keys
