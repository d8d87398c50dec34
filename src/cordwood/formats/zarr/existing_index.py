"""The index of a directory that a save adds to, and what a save must not take over."""

from __future__ import annotations

import errno
import os
from functools import partial

from cordwood.errors import CordwoodError, NotACheckpointError
from cordwood.formats.refuse_other_tools import refuse_other_tools
from cordwood.formats.zarr.read_index import read_index_file
from cordwood.formats.zarr.tensorstore_index import INDEX_NAME, IndexFile
from cordwood.storage.directories import count_files
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath
from cordwood.storage.retry_reading import ReplacedError, retry_reading

MAX_FOREIGN_FILES = 10_000  # that a directory without an index may hold
_OTHER_INDEX = "cordwood.json"  # of packs


def refuse_to_add(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError for a directory that a save must not take over.

    Files in a directory without an index are no reason: eFormer's calls add to such a directory.
    """
    text = os.fspath(path)
    if existing_index(text, text) is None:
        refuse_other_tools(LocalPath(text), asked=text)


def existing_index(directory_path: str, asked: str) -> IndexFile | None:
    """Return the index of a directory; None if it has none."""
    return retry_reading(partial(_read_existing_index, directory_path, asked))


def _read_existing_index(directory_path: str, asked: str) -> IndexFile | None:
    """Return the same from one look at the directory.

    Raises ReplacedError if another save has replaced the directory meanwhile.
    """
    try:
        directory = LocalDirectory(directory_path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # the stage says what is wrong with a file
    with directory:
        if directory.has(_OTHER_INDEX):
            raise NotACheckpointError(
                errno.EEXIST,
                f"it is a checkpoint of another layout (it has a {_OTHER_INDEX}); remove it, or "
                "save to another path",
                asked,
            )
        if directory.has(INDEX_NAME):
            try:
                return read_index_file(directory)
            except CordwoodError as e:
                if not directory.has(INDEX_NAME):
                    text = "other saves keep replacing it; save again"
                    raise ReplacedError(NotACheckpointError(errno.EBUSY, text, asked)) from e
                raise NotACheckpointError(
                    errno.EEXIST,
                    f"the checkpoint there cannot be read, so that what it holds could not be kept "
                    f"({e}); remove it, or save to another path",
                    asked,
                ) from e
        if count_files(directory_path, at_most=MAX_FOREIGN_FILES) > MAX_FOREIGN_FILES:
            raise NotACheckpointError(
                errno.EEXIST,
                f"it is no checkpoint and holds more than {MAX_FOREIGN_FILES} files; save to a "
                "directory of its own",
                asked,
            )
        return None
