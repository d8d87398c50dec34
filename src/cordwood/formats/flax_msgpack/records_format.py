"""The format of streams of msgpack records, read only: recognise and open them."""

from __future__ import annotations

from cordwood.formats.flax_msgpack.format import PAIR
from cordwood.formats.flax_msgpack.read_index import read_index as read_flax_index
from cordwood.formats.flax_msgpack.read_records import begins_record, read_index
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.open_single_file import can_read, open_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.storage.locations import Location, require_local


def matches(format: Format, place: Place) -> Match:
    """Return MAYBE for a damaged stream: it begins with a record and is no file of Flax's."""
    del format
    file = place.file
    if file is None or not file.size_bytes or file.read(0, 1) != PAIR:
        return Match.NO
    if can_read(file, read_index):
        return Match.YES
    if begins_record(file) and not can_read(file, read_flax_index):
        return Match.MAYBE
    return Match.NO


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a stream."""
    del item, options
    return open_file(require_local(location), read_index, name=format.name)
