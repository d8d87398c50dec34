"""The format of equinox, arrays one after another in a file: recognise and open it."""

from __future__ import annotations

from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.numpy_files.npy_header import MAGIC
from cordwood.formats.numpy_files.read_eqx import line_in_front, read_eqx_index
from cordwood.formats.open_single_file import can_read, open_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.storage.locations import Location, require_local


def matches(format: Format, place: Place) -> Match:
    """Return YES for a file whose arrays can be read, perhaps after a line of text."""
    del format
    if place.file is None:
        return Match.NO
    if not place.head.startswith(MAGIC) and line_in_front(place.head) is None:
        return Match.NO
    return Match.YES if can_read(place.file, read_eqx_index) else Match.NO


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a file of arrays."""
    del item, options
    return open_file(require_local(location), read_eqx_index, name=format.name)
