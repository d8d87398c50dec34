"""OCDBT, TensorStore's database of keys and values: its manifest and the nodes of its B+tree.

Bytes in, values out. The format: https://google.github.io/tensorstore/kvstore/ocdbt/index.html
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import CorruptionError, FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.orbax.crc32c import has_valid_crc32c
from cordwood.message_text import counted

MANIFEST_NAME = "manifest.ocdbt"
MAX_NODE_BYTES = 1 << 28  # decoded; what Orbax writes stays below 1e8
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
    if not has_valid_crc32c(data):
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
