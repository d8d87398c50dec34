"""Open a directory of packs, which is on a local disk or in an object store, and check it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from cordwood.errors import CordwoodError, CorruptionError, IncompleteCheckpointError
from cordwood.formats.format_protocol import DataFiles, Opened, OpenOptions
from cordwood.formats.packs.cordwood_json import INDEX_NAME, decode_index
from cordwood.formats.packs.pack_headers import digests_of_pack
from cordwood.formats.packs.packs_storage import require_index, store_at
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import FORMAT, read_index
from cordwood.formats.packs.select_item import select_item
from cordwood.formats.packs.unshared.step_files import UNSHARED_ADVICE, missing_files_text
from cordwood.formats.table import Format
from cordwood.index import Box, Digests, Leaf, Source
from cordwood.io.open_files import Closable, ReadableFile, naming
from cordwood.io.read_ahead_file import ReadAheadFile
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.storage_protocol import Storage

_LISTED_CELLS = 200_000  # of an item with more, pieces are only listed for the leaves that are read


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open an item of a directory of packs.

    Args:
        format: the row of packs.
        location: the directory.
        item: the prefix of the item. None: the tree saved without one, or the only item.
        options: for `verify`, a file that is missing or damaged raises its error when it is read.

    Raises:
        FileNotFoundError: there is nothing.
        IncompleteCheckpointError: there is no index.
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError: the index is not what docs/format.md says, or a file is too short.
        CorruptionError: the index is damaged, or a file is missing or of another size.
    """
    del format
    store = store_at(location)
    data = require_index(store)

    def read() -> Opened:
        nonlocal data
        try:
            return _open(store, data, item, options)
        except CordwoodError as e:
            before, data = data, require_index(store)
            if data == before:
                raise
            raise ReplacedError(e) from e

    return retry_reading(read)


def item_names(location: Location) -> list[str]:
    """Return the prefixes of the trees of a directory of packs, sorted; '' for the unnamed one.

    Raises as `open_item` does.
    """
    store = store_at(location)
    data = require_index(store)
    with naming(f"{store.name}/{INDEX_NAME}"):
        return sorted(decode_index(data))


def data_files(location: Location) -> DataFiles:
    """Return the data files of a directory of packs. Raises as `open_item` does."""
    store = store_at(location)
    data = require_index(store)
    items = parse_items(data, name=store.name)
    return DataFiles(
        data,
        sum([len(item.leaf_types) for item in items.values()]),
        [pack.source for item in items.values() for pack in item.packs],
    )


def open_data_files(
    location: Location, sources: Sequence[Source]
) -> tuple[Sequence[ReadableFile], Callable[[int], Digests]]:
    """Return packs, open, and what reads the digests of each from its header."""
    files = _open_each(store_at(location), sources)
    return files, partial(digests_of_pack, sources, files)


def _open(store: Storage, data: bytes, prefix: str | None, options: OpenOptions) -> Opened:
    items = parse_items(data, name=store.name)
    item = select_item(items, prefix, name=store.name)
    listed = item.cell_count <= _LISTED_CELLS
    index = read_index(item, boxes=None if listed else [()] * len(item.leaf_types))
    sources = index.sources
    try:
        files = _open_each(store, sources) if options.for_verify else store.open(sources)
    except CorruptionError as e:
        missing = missing_files_text(data, store.names())
        if not missing:
            raise
        raise IncompleteCheckpointError(f"{store.name}: {missing}; {UNSHARED_ADVICE}") from e
    location = store.location
    is_held = isinstance(location, LocalPath) and location.held is not None
    if options.read_ahead_bytes and not is_held:  # what was read of one place would be kept
        files = [
            ReadAheadFile(file, options.read_ahead_bytes) if file.latency_bound else file
            for file in files
        ]

    def is_current() -> bool:
        with suppress(CordwoodError):
            return store.read_index() == data
        return False

    def locate(needed: Mapping[int, Sequence[Box] | None]) -> dict[int, Leaf]:
        boxes = [needed.get(leaf, ()) for leaf in range(len(item.leaf_types))]
        leaves = read_index(item, boxes=boxes).leaves
        return {leaf: leaves[leaf] for leaf in needed}

    fetch = partial(digests_of_pack, sources, files)
    return Opened(
        FORMAT,
        index,
        files,
        fetch,
        None if listed else locate,
        is_current,
        index_bytes=len(data),
        always_verify=is_held,
    )


class _BrokenFile(Closable):
    """A data file that could not be opened; reading it raises the error."""

    def __init__(self, name: str, size_bytes: int, error: Exception) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._error = error

    def read(self, offset: int, length: int) -> bytes:
        del offset, length
        raise self._error

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        del offset, views
        raise self._error

    def map(self) -> memoryview:
        raise self._error

    def close(self) -> None:
        """Do nothing: the file is not open."""


def _open_each(store: Storage, sources: Sequence[Source]) -> list[ReadableFile]:
    """Open data files; one that is missing or damaged raises its error when it is read."""
    try:
        return store.open(sources)
    except (CordwoodError, OSError):
        pass
    files: list[ReadableFile] = []
    for source in sources:
        try:
            files += store.open([source])
        except (CordwoodError, OSError) as e:
            files.append(_BrokenFile(source.name, source.size_bytes, e))
    return files
