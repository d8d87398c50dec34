"""Formats of one file: what opening one, and saving over one, have in common."""

from __future__ import annotations

import errno
from collections.abc import Callable

from cordwood.errors import CordwoodError, FileChangedError, NotACheckpointError
from cordwood.formats.foreign_files import foreign_file
from cordwood.formats.format_protocol import Opened
from cordwood.index import Index
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import is_empty_file, kind_at


def open_file(path: LocalPath, read_index: Callable[[ReadableFile], Index], *, name: str) -> Opened:
    """Open a file of the format `name`."""
    return opened_file(LocalFile(path), read_index, name=name)


def opened_file(
    file: ReadableFile, read_index: Callable[[ReadableFile], Index], *, name: str
) -> Opened:
    """Return what a source holds, and close the source if that fails."""
    try:
        return Opened(name, read_index(file), (file,))
    except BaseException:
        file.close()
        raise


def can_read(file: ReadableFile, read_index: Callable[[ReadableFile], Index]) -> bool:
    """Return whether a format can read the index of a file. Raises FileChangedError."""
    try:
        read_index(file)
    except FileChangedError:
        raise
    except CordwoodError:
        return False
    return True


def refuse_foreign_file(
    path: LocalPath, require: Callable[[ReadableFile], object], *, name: str
) -> None:
    """Raise if `path` is something that a save would destroy and could not have written.

    Args:
        path: the destination of the save.
        require: raises CordwoodError unless a file is of the format, by the least reading that
            tells. Damage further in the file is no reason to keep it.
        name: the name of the format.
    """
    what = kind_at(path)
    if what == "a folder":
        raise IsADirectoryError(
            errno.EISDIR, f"a {name} checkpoint is one file, and this is a directory", str(path)
        )
    if what == "nothing" or is_empty_file(path):
        return
    try:
        with LocalFile(path) as file:
            require(file)
    except FileChangedError:
        raise
    except CordwoodError as e:
        with LocalFile(path) as file:
            kind = foreign_file(file)
        raise NotACheckpointError(
            f"{path} exists and is not a {name} checkpoint "
            f"({e if kind is None else f'it is {kind}'}); remove it, or save to another path"
        ) from e
