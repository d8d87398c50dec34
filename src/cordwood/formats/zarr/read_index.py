"""The index of an item of the zarr format, or of a tree of arrays without an index."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cordwood import dtypes
from cordwood.encoding.digests import DIGEST_BYTES, block_count, digest_of
from cordwood.encoding.json_leaf_types import LeafType
from cordwood.errors import CorruptionError, FormatError, IncompleteCheckpointError, StorageError
from cordwood.formats.format_protocol import IndexListing, Opened, OpenOptions
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_metadata import ArrayMetadata
from cordwood.formats.zarr.array_reader import (
    ArrayReader,
    Messages,
    StoredArray,
    array_storage,
    leaf_of_array,
    refuse_marked,
    wrong_size,
)
from cordwood.formats.zarr.item_members import ItemMembers, parse_item
from cordwood.formats.zarr.key_values import FileValues
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME
from cordwood.formats.zarr.nested_dicts import nested_dicts
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    Entry,
    IndexFile,
    entries_of,
    parse_index,
    prefixes_of,
    select_item,
)
from cordwood.formats.zarr.zarr_dtypes import stored_as
from cordwood.index import Digests, Index, Inline, Leaf, Source, leaf_paths
from cordwood.io.open_files import LocalFile, naming, read_whole
from cordwood.keypath import KeyPath
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.paths import locate_directory
from cordwood.storage.readable_directory import OpenDirectory, ReadableDirectory
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "zarr"

_MESSAGES = Messages("{key} is missing: the checkpoint is incomplete; copy or save it again")


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open an item of a directory, by its name; None: the one without a name, or the only one.

    Raises as `open_prefix`.
    """
    del format, options
    return open_prefix(location, item, or_only=True)


def open_prefix(location: Location, prefix: str | None, *, or_only: bool = False) -> Opened:
    """Open a directory and read the index of one of its items. Arguments as of `read_index`.

    Raises FileNotFoundError if there is no such directory, IncompleteCheckpointError if it has no
    index, and what `read_index` raises.
    """
    directory = open_directory(location)
    opened = open_arrays(directory, partial(read_index, prefix=prefix, or_only=or_only))
    if not isinstance(directory, LocalDirectory):
        return opened  # of another tool: cordwood saves no such directory to a store
    return replace(
        opened, is_current=lambda: directory.is_still_at(locate_directory(str(location)))
    )


def open_arrays(directory: OpenDirectory, read: Callable[[ReadableDirectory], Index]) -> Opened:
    """Return the index that `read` reads of a directory, and its files, which own the directory."""
    try:
        index = read(directory)
    except BaseException:
        directory.close()
        raise
    files = [directory.owning_file(each.name, each.size_bytes) for each in index.sources]
    return Opened(index.format, index, files)


def item_names(location: Location) -> list[str]:
    """Return the prefixes of the items of a directory, sorted; '' for the unnamed one.

    Raises as `open_item`.
    """
    with open_directory(location) as directory:
        return sorted(prefixes_of(read_index_file(directory)))


def open_directory(location: Location) -> OpenDirectory:
    """Open the directory of a checkpoint. No save by cordwood removes it while it is open.

    Raises FileNotFoundError; IncompleteCheckpointError where it has no index.
    """
    if isinstance(location, LocalPath):
        directory: OpenDirectory = retry_reading(partial(_held_directory, location))
    else:
        directory = directory_at(location)
    if directory.has(INDEX_NAME):
        return directory
    why = ": no save to it has finished, or it is no such checkpoint; load an earlier one"
    if directory.has("cordwood.json"):
        why = ", but a cordwood.json: load it with cordwood.load"
    directory.close()
    raise IncompleteCheckpointError(f"{location} has no {INDEX_NAME}{why}")


def _held_directory(path: LocalPath) -> LocalDirectory:
    place = locate_directory(path)
    try:
        directory = LocalDirectory(place)
    except FileNotFoundError as e:
        missing = FileNotFoundError(errno.ENOENT, "there is no checkpoint", path.text)
        if place != path.text:
            raise ReplacedError(missing) from e  # put back meanwhile
        raise missing from e
    directory.hold()
    if directory.is_still_at(place):
        return directory
    directory.close()  # replaced before it was held: its save may be removing it
    text = "other saves keep replacing it; load it again"
    raise ReplacedError(StorageError(errno.EBUSY, text, path.text))


def read_index_file(directory: ReadableDirectory) -> IndexFile:
    """Return the index file of a directory.

    Raises FormatError, CorruptionError and UnsupportedFormatError, which name the directory.
    """
    data = directory.read(INDEX_NAME, limit_bytes=MAX_INDEX_BYTES)
    with naming(directory.name):
        return parse_index(data)


def read_index(
    directory: ReadableDirectory, prefix: str | None = None, *, or_only: bool = False
) -> Index:
    """Return the index of one item of a directory.

    Names of sources are relative to the directory. An item of cordwood's comes with its tree,
    exact key paths and digests, its index and every `.zarray` verified here. Of any other the
    arrays come as nested dicts of jax arrays; nothing in it can be verified.

    Args:
        directory: open.
        prefix: the item's; None or '' for the one that was saved without.
        or_only: None stands for the only item too, if there is only one.

    Raises:
        FormatError: the index, a `.zarray` or a chunk is not what it should be.
        CorruptionError: a file is missing, no regular file, or not what cordwood wrote.
        UnsupportedFormatError: a newer cordwood wrote it.
        PrefixError: there is no item of that prefix.
    """
    with gc_paused():
        index = read_index_file(directory)
        with naming(directory.name):
            name, entries, item = _select(index, prefix, or_only=or_only)
        return read_arrays(directory, name, entries, item)


def list_index(path: LocalPath, prefix: str | None) -> IndexListing | None:
    """Return the leaves of an item of a local directory by its index alone, without numpy.

    They are without pieces: the index does not have the number of chunks of an array. None if it
    does not describe its arrays.

    Args:
        path: the directory.
        prefix: the prefix of the item. None: the one saved without, or the only one.

    Raises FormatError, CorruptionError, UnsupportedFormatError and PrefixError, as `read_index`.
    """
    with LocalFile(f"{path}/{INDEX_NAME}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    with naming(path.text):
        name, entries, item = _select(parse_index(data), prefix, or_only=True)
        arrays: dict[object, StoredArray] = {}
        for shape, dtype in {(entry.shape, entry.dtype) for entry in entries}:
            if shape is None or dtype is None or not dtypes.is_storable(dtype):
                return None
            metadata = ArrayMetadata(shape, shape, dtype, False, "C", None, ".")
            arrays[shape, dtype] = StoredArray(metadata, ())
        each = [arrays[entry.shape, entry.dtype] for entry in entries]
        tree = _index(name, entries, each, item, ())
        return IndexListing(tree, tree.metadata)


def _select(
    index: IndexFile, prefix: str | None, *, or_only: bool
) -> tuple[str, Sequence[Entry], ItemMembers | None]:
    """Return an item: its prefix, its arrays, and cordwood's part, if there is one."""
    names = prefixes_of(index)
    name = names[0] if or_only and prefix is None and len(names) == 1 else None
    if name is None:
        name = select_item(index, prefix)
    entries = entries_of(index, name)
    if name not in index.items:
        return name, entries, None
    return name, entries, parse_item(index.items[name], array_count=len(entries))


def read_arrays(
    directory: ReadableDirectory, prefix: str, entries: Sequence[Entry], item: ItemMembers | None
) -> Index:
    """Return the index of arrays: those of cordwood's item `item`, or (None) of another writer.

    Raises as `read_index`.
    """
    values = FileValues(directory, are_listed=True)
    reader = ArrayReader(values, _MESSAGES, version=2, names_first=True)
    digests = None if item is None else _ItemDigests(item)
    arrays = []
    for entry in entries:
        with naming(f"{directory.name}/{entry.path}", within=directory.name):
            arrays.append(_read_array(entry, values, reader, digests))
    with naming(directory.name):
        if digests is not None:
            digests.finish(len(values.sources))
        return _index(prefix, entries, arrays, item, tuple(values.sources))


def _index(
    prefix: str,
    entries: Sequence[Entry],
    arrays: Sequence[StoredArray],
    item: ItemMembers | None,
    sources: tuple[Source, ...],
) -> Index:
    """Return the index of an item. Raises FormatError for arrays that do not hold its leaves."""
    if item is None:
        structure, order, paths = nested_dicts([entry.path for entry in entries], prefix)
        leaves = [leaf_of_array(path, arrays[i]) for path, i in zip(paths, order, strict=True)]
        return Index(FORMAT, structure, tuple(leaves), sources, "dotted")
    with naming(INDEX_NAME):
        leaves = _leaves_of_item(item, arrays)
    return Index(FORMAT, item.table.structure, tuple(leaves), sources, "exact", item.metadata)


def _read_array(
    entry: Entry, values: FileValues, reader: ArrayReader, digests: _ItemDigests | None
) -> StoredArray:
    """Look at an array. Its chunks become sources, with digests if cordwood wrote it."""
    path = "" if entry.path == "." else entry.path
    _, data = reader.read_metadata(path)
    if digests is not None and digest_of(data) != digests.next_digests(1):
        raise CorruptionError(f"{METADATA_NAME} does not match its digest: it is damaged")
    metadata = reader.parse(METADATA_NAME, data)
    if digests is None:
        refuse_marked(metadata)
    if entry.shape not in (None, metadata.shape) or entry.dtype not in (None, metadata.dtype):
        raise FormatError(
            f"{INDEX_NAME} says {entry.dtype}{list(entry.shape or ())}, {METADATA_NAME} "
            f"{metadata.dtype}{list(metadata.shape)}"
        )
    first = len(values.sources)
    pieces = reader.pieces(path, metadata)
    if digests is not None:
        for number, source in enumerate(values.sources[first:], first):
            values.sources[number] = digests.sealed(source, number, path)
    return StoredArray(metadata, pieces)


class _ItemDigests:
    """The digests of an item, handed out to its files in order: of each array `.zarray`, chunks."""

    def __init__(self, item: ItemMembers) -> None:
        self._item = item
        self._next = 0

    def next_digests(self, count: int) -> bytes:
        """Return the next digests."""
        start, stop = self._next, self._next + count * DIGEST_BYTES
        values = self._item.digests.values
        if stop > len(values):
            raise CorruptionError("the index has no digests for it")
        self._next = stop
        return values[start:stop]

    def sealed(self, source: Source, number: int, array: str) -> Source:
        """Return source `number`, which is a chunk of an array, with its digests."""
        sizes, block_bytes = self._item.sizes, self._item.digests.block_bytes
        if sizes is not None:
            expected = sizes[number] if number < len(sizes) else 0
            if source.size_bytes != expected:
                key = source.name.removeprefix(f"{array}/")
                raise wrong_size(_MESSAGES, key, expected, source.size_bytes)
        values = self.next_digests(block_count(source.size_bytes, block_bytes))
        return source._replace(digests=Digests(0, block_bytes, values))

    def finish(self, source_count: int) -> None:
        """Raise CorruptionError unless every digest, and every size, was of a file."""
        size = len(self._item.digests.values)
        if self._next != size or len(self._item.sizes or ()) not in (0, source_count):
            raise CorruptionError(f"the index has {size} bytes of digests, expected {self._next}")


def _leaves_of_item(item: ItemMembers, arrays: Sequence[StoredArray]) -> list[Leaf]:
    table = item.table
    array_of = dict(zip(item.order, arrays, strict=True))
    values = iter(table.values)
    typed = zip(leaf_paths(table.structure), table.leaf_types(), strict=True)
    return [
        _leaf_of_item(path, leaf_type, array_of[i])
        if leaf_type.tensor
        else Leaf(path, leaf_type.kind, (), "", Inline(next(values)))
        for i, (path, leaf_type) in enumerate(typed)
    ]


def _leaf_of_item(path: KeyPath, leaf_type: LeafType, array: StoredArray) -> Leaf:
    """Return a leaf of cordwood's. Raises FormatError for an array that holds none of its type."""
    kind, _, logical, weak_type, impl = leaf_type
    metadata = array.metadata
    shape, dtype = metadata.shape, metadata.dtype
    extra: tuple[int, ...] = ()  # the axes after those of the leaf
    fits = kind not in ("str", "bytes")
    if logical:
        stored = stored_as(logical)
        axes = max(0, len(shape) - len(stored.extra))
        fits = fits and stored.disguised and stored.dtype == dtype and shape[axes:] == stored.extra
        shape, dtype, extra = shape[:axes], logical, stored.extra
    if kind == "numpy_scalar":
        fits = fits and shape == ()
    elif kind == "prng_key":
        fits = fits and shape != () and dtype == "uint32"
    if not fits:
        found = f"{metadata.dtype}{list(metadata.shape)}"
        raise FormatError(
            f"an array of {found} cannot hold a leaf of type {kind} {logical}".rstrip()
        )
    if metadata.chunks[len(shape) :] != extra:
        raise FormatError(
            f"an array in chunks of {list(metadata.chunks)} cannot hold a leaf of type {kind} "
            f"{dtype}: they cut its elements"
        )
    return Leaf(path, kind, shape, dtype, array_storage(array, len(shape)), weak_type, impl)
