"""The opening of formats of one file, what they have in common."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.errors import CordwoodError, FileChangedError
from cordwood.formats.format_protocol import Opened
from cordwood.index import Index
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.storage.locations import LocalPath


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
