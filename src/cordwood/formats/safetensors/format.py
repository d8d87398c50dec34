"""The format of safetensors files: recognise, open and list them."""

from __future__ import annotations

from cordwood.formats.format_protocol import IndexListing, Opened, OpenOptions
from cordwood.formats.open_single_file import open_file
from cordwood.formats.place import Match, Place
from cordwood.formats.safetensors.read_header import MAX_HEADER_BYTES
from cordwood.formats.safetensors.read_index import read_index
from cordwood.formats.table import Format
from cordwood.io.open_files import LocalFile
from cordwood.storage.locations import LocalPath, Location, require_local


def matches(format: Format, place: Place) -> Match:
    """Return YES for a file that begins with the size of a header, and a header."""
    del format
    if place.file is None:
        return Match.NO
    header_bytes = int.from_bytes(place.head[:8], "little")
    fits = header_bytes <= min(MAX_HEADER_BYTES, place.file.size_bytes - 8)
    return Match.YES if place.head[8:9] == b"{" and fits else Match.NO


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a file."""
    del item, options
    return open_file(require_local(location), read_index, name=format.name)


def list_index(path: LocalPath, item: str | None) -> IndexListing | None:
    """Return the leaves of a file, by its header."""
    if item is not None:
        return None
    with LocalFile(path) as file:
        index = read_index(file)
    return IndexListing(index, index.metadata)
