"""Open a directory of packs, which is on a local disk or in an object store, and check it."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError, IncompleteCheckpointError
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.packs.cordwood_json import INDEX_NAME, decode_index
from cordwood.formats.packs.pack_headers import sealed_digests
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import FORMAT, read_index
from cordwood.formats.packs.select_item import select_item
from cordwood.formats.step_names import MAX_STEPS_OPENED, sorted_steps
from cordwood.formats.table import Format
from cordwood.index import Box, Digests, Leaf, Source
from cordwood.io.open_files import Closable, ReadableFile, naming
from cordwood.message_text import counted, listed
from cordwood.storage.locations import Location, Url
from cordwood.storage.paths import NOTHING_ON_THE_WEB
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
    data = read_index_bytes(store)

    def read() -> Opened:
        nonlocal data
        try:
            return _open(store, data, item, for_verify=options.for_verify)
        except CordwoodError as e:
            before, data = data, read_index_bytes(store)
            if data == before:
                raise
            raise ReplacedError(e) from e

    return retry_reading(read)


def item_names(location: Location) -> list[str]:
    """Return the prefixes of the trees of a directory of packs, sorted; '' for the unnamed one.

    Raises as `open_item` does.
    """
    store = store_at(location)
    data = read_index_bytes(store)
    with naming(f"{store.name}/{INDEX_NAME}"):
        return sorted(decode_index(data))


def read_index_bytes(store: Storage) -> bytes:
    """Return the bytes of an index that must be there. Raises as `open_item` does."""
    data = store.read_index()
    if data is not None:
        return data
    names = store.names()
    if not names:
        is_web = isinstance(store.location, Url) and store.location.is_web
        what = NOTHING_ON_THE_WEB if is_web else "there is no checkpoint"
        raise FileNotFoundError(errno.ENOENT, what, store.name)
    steps = sorted_steps(names)
    if not steps:
        raise IncompleteCheckpointError(
            f"{store.name} has no {INDEX_NAME}: no save to it has finished, or it is no checkpoint"
        )
    newest = steps[-1]
    for step in reversed(steps[-MAX_STEPS_OPENED:]):
        if store_at(store.location.child(step)).read_index() is not None:
            newest = step
            break
    raise IncompleteCheckpointError(
        f"{store.name} is a directory of {counted(len(steps), 'step')} ({listed(steps)}), and no "
        f"checkpoint itself: load one of them; the newest is {store.name}/{newest}"
    )


def _open(store: Storage, data: bytes, prefix: str | None, *, for_verify: bool) -> Opened:
    items = parse_items(data, name=store.name)
    item = select_item(items, prefix, name=store.name)
    listed = item.cell_count <= _LISTED_CELLS
    index = read_index(item, boxes=None if listed else [()] * len(item.leaf_types))
    files = _open_each(store, index.sources) if for_verify else store.open(index.sources)

    def fetch(number: int) -> Digests:
        sealed = index.sources[number].header_digest
        assert sealed is not None
        return sealed_digests(files[number], sealed)

    def is_current() -> bool:
        with suppress(CordwoodError):
            return store.read_index() == data
        return False

    def locate(needed: Mapping[int, Sequence[Box] | None]) -> dict[int, Leaf]:
        boxes = [needed.get(leaf, ()) for leaf in range(len(item.leaf_types))]
        leaves = read_index(item, boxes=boxes).leaves
        return {leaf: leaves[leaf] for leaf in needed}

    return Opened(
        FORMAT, index, files, fetch, None if listed else locate, is_current, index_bytes=len(data)
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
