"""The format of one numpy array in a file: recognise and open it."""

from __future__ import annotations

from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.numpy_files.npy_header import MAGIC
from cordwood.formats.numpy_files.read_npy import read_index
from cordwood.formats.open_single_file import can_read, open_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.storage.locations import Location, require_local


def matches(format: Format, place: Place) -> Match:
    """Return MAYBE for a file that only begins as an array: it may be of equinox, or damaged."""
    del format
    if place.file is None or not place.head.startswith(MAGIC):
        return Match.NO
    return Match.YES if can_read(place.file, read_index) else Match.MAYBE


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open an array."""
    del item, options
    return open_file(require_local(location), read_index, name=format.name)
