"""From a directory to an Index."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.encoding.digests import DIGEST_BYTES, block_count, digest_of
from cordwood.encoding.leaf_table import LeafType
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.zarr.chunk_grid import chunk_count, chunks
from cordwood.formats.zarr.chunk_layout import chunk_storage
from cordwood.formats.zarr.item_metadata import Item, parse_item
from cordwood.formats.zarr.leaf_type import leaf_form
from cordwood.formats.zarr.metadata_v2 import (
    MAX_METADATA_BYTES,
    METADATA_NAME,
    ArrayMetadata,
    parse_metadata,
)
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    Entry,
    IndexFile,
    entries_of,
    parse_index,
    select_item,
)
from cordwood.formats.zarr.tree_from_paths import nested_dicts
from cordwood.index import (
    Box,
    Digests,
    Encoded,
    Index,
    Inline,
    Leaf,
    Piece,
    Pieces,
    Source,
)
from cordwood.io.pause_python_gc import gc_paused
from cordwood.keypath import KeyPath
from cordwood.storage.directory_reader import ReadableDirectory
from cordwood.tree.structure import leaf_paths

FORMAT = "zarr"

_CHUNK_NAME = re.compile(r"[0-9]+(\.[0-9]+)*")
_ERRORS = (FormatError, CorruptionError, UnsupportedFormatError)


class _Array(NamedTuple):
    """An array as it lies in the directory."""

    metadata: ArrayMetadata
    chunks: tuple[tuple[int, Box], ...]  # the source of each, and what it holds
    sizes: tuple[int, ...]  # of the chunk files, in bytes


def read_index_file(directory: ReadableDirectory) -> IndexFile:
    """Return the index file of a directory.

    Raises FormatError, CorruptionError and UnsupportedFormatError, which name the directory.
    """
    data = directory.read(INDEX_NAME, limit_bytes=MAX_INDEX_BYTES)
    try:
        return parse_index(data)
    except _ERRORS as e:
        raise type(e)(f"{directory.name}: {e}") from e


def read_index(directory: ReadableDirectory, prefix: str | None = None) -> Index:
    """Return the index of one item of a directory.

    Names of sources are relative to the directory. An item of cordwood's comes with its tree,
    exact key paths and digests, its index and every `.zarray` verified here. Of any other the
    arrays come as nested dicts of jax arrays; nothing in it can be verified.

    Args:
        directory: open.
        prefix: the item's; None or '' for the one that was saved without.

    Raises:
        FormatError: the index, a `.zarray` or a chunk is not what it should be.
        CorruptionError: a file is missing, no regular file, or not what cordwood wrote.
        UnsupportedFormatError: a newer cordwood wrote it.
        PrefixError: there is no item of that prefix.
    """
    with gc_paused():
        index = read_index_file(directory)
        try:
            name = select_item(index, prefix)
            entries = entries_of(index, name)
            item = None
            if name in index.items:
                item = parse_item(index.items[name], array_count=len(entries))
        except _ERRORS as e:
            raise type(e)(f"{directory.name}: {e}") from e
        return read_arrays(directory, name, entries, item)


def read_arrays(
    directory: ReadableDirectory, prefix: str, entries: Sequence[Entry], item: Item | None
) -> Index:
    """Return the index of arrays: those of cordwood's item `item`, or (None) of another writer.

    Raises as `read_index`.
    """
    reader = _Reader(directory, item)
    arrays = []
    for entry in entries:
        try:
            arrays.append(reader.array(entry))
        except _ERRORS as e:
            raise _named(e, directory, entry.path) from e
    reader.finish()
    sources = tuple(reader.sources)
    if item is None:
        structure, order, paths = nested_dicts([entry.path for entry in entries], prefix)
        leaves = [_leaf(path, arrays[i]) for path, i in zip(paths, order, strict=True)]
        return Index(FORMAT, structure, tuple(leaves), sources, "dotted")
    try:
        leaves = _leaves_of_item(item, arrays)
    except FormatError as e:
        raise FormatError(f"{directory.name}: {INDEX_NAME}: {e}") from e
    return Index(FORMAT, item.table.structure, tuple(leaves), sources, "exact", item.metadata)


def _named(error: Exception, directory: ReadableDirectory, path: str) -> Exception:
    """Return the same error with the name of the file."""
    text = str(error)
    if not text.startswith(directory.name):
        text = f"{directory.name}/{path}: {text}"
    return type(error)(text)


class _Reader:
    """Looks at the arrays one after another, and hands out the item's digests to their files."""

    def __init__(self, directory: ReadableDirectory, item: Item | None) -> None:
        self.sources: list[Source] = []
        self._directory = directory
        self._item = item
        self._next_digest = 0
        self._known: dict[bytes, ArrayMetadata] = {}

    def array(self, entry: Entry) -> _Array:
        directory = self._directory
        sizes = directory.sizes(entry.path)
        metadata = self._metadata(entry, sizes)
        chunk_pieces = self._chunks(entry, metadata, sizes)
        return _Array(metadata, *chunk_pieces)

    def finish(self) -> None:
        """Every digest, and every size, was of a file."""
        item = self._item
        if item is None:
            return
        if self._next_digest != len(item.digests) or len(item.sizes or ()) not in (
            0,
            len(self.sources),
        ):
            raise CorruptionError(
                f"{self._directory.name}: the index has {len(item.digests)} bytes of digests, "
                f"expected {self._next_digest}"
            )

    def _metadata(self, entry: Entry, sizes: Mapping[str, int]) -> ArrayMetadata:
        _require_regular(METADATA_NAME, sizes)
        data = self._directory.read(
            _join(entry.path, METADATA_NAME), limit_bytes=MAX_METADATA_BYTES
        )
        if self._item is not None and digest_of(data) != self._take(1):
            raise CorruptionError(f"{METADATA_NAME} does not match its digest: it is damaged")
        metadata = self._known.get(data)
        if metadata is None:
            metadata = self._known[data] = parse_metadata(data)
        if self._item is None and metadata.marked:
            raise CorruptionError(
                f"cordwood wrote this array, and its part of {INDEX_NAME} is gone: restore the "
                "index, or save the arrays again"
            )
        if entry.shape not in (None, metadata.shape) or entry.dtype not in (None, metadata.dtype):
            raise FormatError(
                f"{INDEX_NAME} says {entry.dtype}{list(entry.shape or ())}, {METADATA_NAME} "
                f"{metadata.dtype}{list(metadata.shape)}"
            )
        return metadata

    def _chunks(
        self, entry: Entry, metadata: ArrayMetadata, file_sizes: Mapping[str, int]
    ) -> tuple[tuple[tuple[int, Box], ...], tuple[int, ...]]:
        shape, extents, separator = metadata.shape, metadata.chunks, metadata.separator
        nested = separator == "/" and len(shape) > 1
        count = chunk_count(shape, extents)
        if not nested:
            self._check_count(count, metadata, file_sizes)
        chunk_bytes = dtypes.itemsize(metadata.dtype) * math.prod(extents)
        folder = ""
        chunk_pieces = []
        sizes = []
        for name, box in chunks(shape, extents, separator):
            last = name
            if nested:
                parent, _, last = name.rpartition("/")
                if parent != folder:
                    file_sizes = self._directory.sizes(_join(entry.path, parent))
                    folder = parent
            _require_regular(last, file_sizes, shown=name)
            size = file_sizes[last]
            if metadata.compressor is None and size != chunk_bytes:
                raise _wrong_size(name, chunk_bytes, size)
            digests = self._digests(name, size)
            chunk_pieces.append((len(self.sources), box))
            sizes.append(size)
            self.sources.append(Source(_join(entry.path, name), size, digests))
        return tuple(chunk_pieces), tuple(sizes)

    def _check_count(self, count: int, metadata: ArrayMetadata, sizes: Mapping[str, int]) -> None:
        """Before the names of so many chunks are made: that there are as many files."""
        axes = max(1, len(metadata.shape))
        named = [n for n in sizes if is_chunk_name(n) and n.count(".") == axes - 1]
        if len(named) > count:
            expected_names = {name for name, _ in chunks(metadata.shape, metadata.chunks, ".")}
            extra = sorted(set(named) - expected_names)
            raise CorruptionError(
                f"{extra[0]} is no chunk of an array of shape {list(metadata.shape)} in chunks of "
                f"{list(metadata.chunks)}: it belongs to another checkpoint, or {METADATA_NAME} "
                "does; copy or save it again"
            )
        if len(named) < count:
            missing = next(
                name
                for name, _ in chunks(metadata.shape, metadata.chunks, ".")
                if name not in sizes
            )
            raise _missing(missing)

    def _digests(self, name: str, size: int) -> Digests | None:
        item = self._item
        if item is None:
            return None
        if item.sizes is not None:
            expected = item.sizes[len(self.sources)] if len(self.sources) < len(item.sizes) else 0
            if size != expected:
                raise _wrong_size(name, expected, size)
        return Digests(0, item.block_bytes, self._take(block_count(size, item.block_bytes)))

    def _take(self, count: int) -> bytes:
        """Return the next digests."""
        assert self._item is not None
        start, stop = self._next_digest, self._next_digest + count * DIGEST_BYTES
        if stop > len(self._item.digests):
            raise CorruptionError("the index has no digests for it")
        self._next_digest = stop
        return self._item.digests[start:stop]


def is_chunk_name(name: str) -> bool:
    """Return whether a file in the directory of an array is one of its chunks."""
    return _CHUNK_NAME.fullmatch(name) is not None


def _join(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}"


def _require_regular(name: str, sizes: Mapping[str, int], *, shown: str = "") -> None:
    size = sizes.get(name)
    if size is None:
        raise _missing(shown or name)
    if size < 0:
        raise CorruptionError(
            f"{shown or name}: expected a regular file, found a symbolic link, directory or device"
        )


def _missing(name: str) -> CorruptionError:
    return CorruptionError(
        f"{name} is missing: the checkpoint is incomplete; copy or save it again"
    )


def _wrong_size(name: str, expected: int, actual: int) -> CordwoodError:
    kind = TruncatedError if actual < expected else FormatError
    return kind(
        f"{name}: expected {expected} bytes, found {actual}: it is damaged, or belongs to another "
        "array; copy or save it again"
    )


def _storage(array: _Array, axes: int) -> Pieces | Encoded:
    """Return the storage of an array whose first `axes` axes are those of the leaf."""
    chunk_pieces = []
    for (source, box), size in zip(array.chunks, array.sizes, strict=True):
        chunk_pieces.append(Piece(Box(box.start[:axes], box.stop[:axes]), source, 0, size))
    return chunk_storage(array.metadata, chunk_pieces)


def _leaf(path: KeyPath, array: _Array) -> Leaf:
    """Return a leaf of another writer."""
    shape, dtype = array.metadata.shape, array.metadata.dtype
    return Leaf(path, "jax", shape, dtype, _storage(array, len(shape)))


def _leaves_of_item(item: Item, arrays: Sequence[_Array]) -> list[Leaf]:
    table = item.table
    paths = leaf_paths(table.structure)
    array_of = dict(zip(item.order, arrays, strict=True))
    values = iter(table.values)
    leaves = []
    start = 0
    for number, length in table.runs:
        leaf_type = table.types[number]
        for i, path in enumerate(paths[start : start + length], start):
            if leaf_type.tensor:
                leaves.append(_leaf_of_item(path, leaf_type, array_of[i]))
            else:
                leaves.append(Leaf(path, leaf_type.kind, (), "", Inline(next(values))))
        start += length
    return leaves


def _leaf_of_item(path: KeyPath, leaf_type: LeafType, array: _Array) -> Leaf:
    kind, _, _, weak_type, impl = leaf_type
    metadata = array.metadata
    shape, dtype, extra = leaf_form(leaf_type, metadata.shape, metadata.dtype)
    if metadata.chunks[len(shape) :] != extra:
        raise FormatError(
            f"an array in chunks of {list(metadata.chunks)} cannot hold a leaf of type {kind} "
            f"{dtype}: they cut its elements"
        )
    return Leaf(path, kind, shape, dtype, _storage(array, len(shape)), weak_type, impl)
