"""The format of trees of zarr arrays without an index: recognise them, and their files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_files import ARRAY_METADATA, array_files
from cordwood.storage.directories import contains_file
from cordwood.storage.locations import Location

_MAX_ENTRIES = 10_000  # of a directory that are searched for an array


def matches(format: Format, place: Place) -> Match:
    """Return MAYBE for a directory with an array somewhere in it, where no index was seen."""
    del format
    if place.file is not None or not place.search_below:
        return Match.NO
    directory = place.directory
    if directory is not None:
        is_tree = any(map(directory.contains, ARRAY_METADATA))
    else:
        is_tree = any(
            contains_file(place.path, name, at_most=_MAX_ENTRIES) for name in ARRAY_METADATA
        )
    return Match.MAYBE if is_tree else Match.NO


def foreign_files(location: Location, names: Sequence[str]) -> Collection[str]:
    """Return the files in a tree that are no part of its arrays."""
    del location
    return {*names} - array_files(names)
