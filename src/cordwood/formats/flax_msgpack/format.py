"""The format of Flax's msgpack files that are not compressed: recognise, open and list them."""

from __future__ import annotations

from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.format_protocol import IndexListing, Opened, OpenOptions
from cordwood.formats.open_single_file import can_read, opened_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.storage.locations import LocalPath, Location

PAIR = b"\x92"  # msgpack's first byte of a list of two, as records begin too
_EMPTY_MAP = 0x80
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])  # msgpack's first bytes of a dict
_EXTENSIONS = frozenset([0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)])  # and of an array


def matches(format: Format, place: Place) -> Match:
    """Read all of a file that may be msgpack: it has no magic number."""
    if place.file is None:
        return Match.NO
    # Numbers and lists look like text too: they need the suffix.
    if not begins_tree(place.head) and not place.file.name.endswith(format.suffixes):
        return Match.NO
    if not can_read(place.file, read_index):
        return Match.NO
    return Match.MAYBE if place.head.startswith(PAIR) else Match.YES


def begins_tree(head: bytes) -> bool:
    """Return whether bytes begin like the msgpack of a dict or an array.

    Pickles begin like an empty dict, of which nothing follows.
    """
    if not head or (head[0] == _EMPTY_MAP and len(head) > 1):
        return False
    return head[0] in _MAPS or head[0] in _EXTENSIONS


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a file, on a disk or in an object store."""
    del item, options
    if isinstance(location, LocalPath):
        source: ReadableFile = LocalFile(location)
    else:
        from cordwood.storage.object_stores.object_file import whole_object

        source = whole_object(location)
    return opened_file(source, read_index, name=format.name)


def list_index(path: LocalPath, item: str | None) -> IndexListing | None:
    """Return the leaves of a file, by its bytes without those of arrays."""
    if item is not None:
        return None
    with LocalFile(path) as file:
        if not file.size_bytes or file.read(0, 1) == PAIR:
            return None  # these may be records
        index = read_index(file)
    return IndexListing(index, index.metadata)
