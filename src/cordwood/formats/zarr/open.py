"""Open one item of a directory of zarr arrays."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.format_protocol import Opened
from cordwood.formats.zarr.read_index import FORMAT, read_index, read_index_file
from cordwood.formats.zarr.tensorstore_index import INDEX_NAME, item_names
from cordwood.index import Index
from cordwood.io.check_digests import SourceDigests
from cordwood.storage.directory_reader import FileOwningDirectory, LocalDirectory
from cordwood.storage.open_files import ReadableFile
from cordwood.storage.staging_directory import locate_directory

_ATTEMPTS = 100  # each ended by a save that replaced the directory


class OpenItem(NamedTuple):
    """An item, and the directory as it was when it was opened."""

    directory: LocalDirectory
    stored: Index
    files: Sequence[ReadableFile]
    digests: SourceDigests


def open_item(path: str | os.PathLike[str], prefix: str | None) -> OpenItem:
    """Open a directory and read the index of one of its items; the caller closes the directory.

    Args:
        path: the directory.
        prefix: the prefix of the item; None or '' for the one that was saved without.

    Raises:
        FileNotFoundError: there is no such directory, or no index in it.
        PrefixError: it has no item of that prefix.
        FormatError, CorruptionError: as `read_index`.
    """
    directory = open_directory(os.fspath(path))
    try:
        return _item(directory, prefix)
    except BaseException:
        directory.close()
        raise


def open_checkpoint(path: str | os.PathLike[str], prefix: str | None) -> Opened:
    """Open an item; without a prefix the one saved without, or the only one.

    Raises as `open_item`.
    """
    text = os.fspath(path)
    directory = open_directory(text)
    try:
        if prefix is None:
            names = item_names(read_index_file(directory))
            prefix = names[0] if len(names) == 1 else None
        item = _item(directory, prefix)
    except BaseException:
        directory.close()
        raise

    def is_current() -> bool:
        return directory.is_still_at(locate_directory(text))

    return Opened(FORMAT, item.stored, item.files, None, None, is_current)


def sorted_item_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the prefixes of the items of a directory, sorted; '' for the unnamed one.

    Raises as `open_item`.
    """
    with open_directory(os.fspath(path)) as directory:
        return sorted(item_names(read_index_file(directory)))


def _item(directory: LocalDirectory, prefix: str | None) -> OpenItem:
    stored = read_index(directory, prefix)
    files = [
        FileOwningDirectory(directory, source.name, source.size_bytes) for source in stored.sources
    ]
    return OpenItem(directory, stored, files, SourceDigests(stored.sources))


def open_directory(path: str) -> LocalDirectory:
    """Open the directory of a checkpoint. No save by cordwood removes it while it is open.

    Raises FileNotFoundError; IncompleteCheckpointError where it has no index.
    """
    for _ in range(_ATTEMPTS):
        place = locate_directory(path)
        try:
            directory = LocalDirectory(place)
        except FileNotFoundError as e:
            if place != path:
                continue  # put back meanwhile
            raise FileNotFoundError(errno.ENOENT, "there is no checkpoint", path) from e
        directory.hold()
        if directory.is_still_at(place):
            break
        directory.close()  # replaced before it was held: it may be on its way out
    else:
        directory = LocalDirectory(place)
    if not directory.has(INDEX_NAME):
        why = _why(directory)
        directory.close()
        raise IncompleteCheckpointError(f"{path} {why}")
    return directory


def _why(directory: LocalDirectory) -> str:
    if directory.has("cordwood.json"):
        return f"has no {INDEX_NAME}, but a cordwood.json: load it with cordwood.load"
    return (
        f"has no {INDEX_NAME}: no save to it has finished, or it is no such checkpoint; load an "
        "earlier one"
    )
