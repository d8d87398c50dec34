"""The format of directory trees of zarr arrays without an index: recognise them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.formats.place import Match, Place
from cordwood.storage.directories import contains_file

if TYPE_CHECKING:
    from cordwood.formats.table import Format

_NAMES = (".zarray", "zarr.json")  # of the metadata of an array: zarr 2 and 3
_MAX_ENTRIES = 10_000  # of a directory that are searched for an array


def matches(format: Format, place: Place) -> Match:
    """Return MAYBE for a directory in which some array lies, where no index was seen."""
    del format
    if place.file is not None or not place.search_below:
        return Match.NO
    directory = place.directory
    if directory is not None:
        is_tree = any(map(directory.contains, _NAMES))
    else:
        is_tree = any(contains_file(place.path, name, at_most=_MAX_ENTRIES) for name in _NAMES)
    return Match.MAYBE if is_tree else Match.NO
