"""The format of Orbax: recognise a checkpoint, and not the directory of its run."""

from __future__ import annotations

from cordwood.formats.orbax.orbax_directory import inspect_place
from cordwood.formats.orbax.unfinished_saves import is_unfinished_directory
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format


def matches(format: Format, place: Place) -> Match:
    """Return LIKELY if an item of the directory has the index, and the directory has none."""
    if place.file is not None or place.search_below:
        return Match.NO
    if format.index_name in place.names:
        return Match.YES
    directory = inspect_place(place)
    if directory.steps:
        return Match.NO
    is_checkpoint = directory.is_orbax or is_unfinished_directory(place)
    return Match.LIKELY if is_checkpoint else Match.NO
