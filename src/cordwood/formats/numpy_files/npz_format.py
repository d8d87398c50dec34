"""The format of zip archives of numpy arrays: recognise and open them."""

from __future__ import annotations

from functools import partial

from cordwood.errors import CordwoodError, FileChangedError
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.numpy_files.read_npz import read_index
from cordwood.formats.numpy_files.zip_members import read_members
from cordwood.formats.open_single_file import open_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.io.open_files import ReadableFile
from cordwood.storage.locations import Location, require_local

_ZIP, _EMPTY_ZIP = b"PK", b"PK\5\6"


def matches(format: Format, place: Place) -> Match:
    """Return YES for a zip archive with an array in it, or with nothing."""
    del format
    if place.head.startswith(_EMPTY_ZIP):
        return Match.YES
    if place.file is None or not place.head.startswith(_ZIP):
        return Match.NO
    has_arrays = any(name.endswith(".npy") for name in _members_of_zip(place.file))
    return Match.YES if has_arrays else Match.NO


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open an archive."""
    del item
    read = partial(read_index, max_bytes=options.max_bytes)
    return open_file(require_local(location), read, name=format.name)


def _members_of_zip(file: ReadableFile) -> list[str]:
    """Return the names of the members of a zip archive; [] if it is damaged."""
    try:
        return [member.name for member in read_members(file)]
    except FileChangedError:
        raise
    except CordwoodError:
        return []
