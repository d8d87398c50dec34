"""Open one item of a directory of the zarr layout."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.engine.directory import LocalDirectory
from cordwood.engine.files import ReadableFile
from cordwood.engine.source_digests import SourceDigests
from cordwood.engine.stage import standing
from cordwood.formats.zarr import scan
from cordwood.formats.zarr.index_file import INDEX_NAME
from cordwood.index import Index

__all__ = ["OpenItem", "open_item"]


_ATTEMPTS = 100  # with a saver that replaces it each time


class OpenItem(NamedTuple):
    """An item, and the directory as it was when it was opened."""

    directory: LocalDirectory
    stored: Index
    files: Sequence[ReadableFile]
    digests: SourceDigests


def open_item(path: str | os.PathLike[str], prefix: str | None) -> OpenItem:
    """Open a directory and scan one of its items; the caller closes the directory.

    Raises:
        FileNotFoundError: there is no such directory, or no index in it.
        MismatchError: it has no item of that prefix.
        FormatError, CorruptionError: as `formats.zarr.scan`.
    """
    text = os.fspath(path)
    directory = _opened(text)
    try:
        if not directory.has(INDEX_NAME):
            raise _nothing(text, _why(directory))
        index = scan(directory, prefix)
        files = [directory.file(source.name, source.size_bytes) for source in index.sources]
        return OpenItem(directory, index, files, SourceDigests(index.sources))
    except BaseException:
        directory.close()
        raise


def _opened(path: str) -> LocalDirectory:
    """The directory, which no saver of cordwood's removes while it is open."""
    for _ in range(_ATTEMPTS):
        place = standing(path)
        try:
            directory = LocalDirectory(place)
        except FileNotFoundError as e:
            if place != path:
                continue  # put back meanwhile
            raise _nothing(path, "there is no such directory") from e
        directory.hold()
        if directory.is_still_at(place):
            break
        directory.close()  # replaced before it was held: it may be on its way out
    else:
        directory = LocalDirectory(place)
    return directory


def _why(directory: LocalDirectory) -> str:
    if directory.has("cordwood.json"):
        return f"no {INDEX_NAME}, but a cordwood.json: load it with cordwood.load"
    return (
        f"no {INDEX_NAME} in it: the save did not finish, or this is no such checkpoint; load an "
        "earlier one"
    )


def _nothing(path: str, why: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, why, path)
