"""The format of directories with one OCDBT database of all arrays: recognise them."""

from __future__ import annotations

from cordwood.formats.place import Match, Place
from cordwood.formats.table import ORBAX, Format

_OF_ONE_PROCESS = "ocdbt.process_"  # a directory of Orbax; it holds a part of the arrays


def matches(format: Format, place: Place) -> Match:
    """Return LIKELY for a database that is not Orbax's; YES if jax described its tree."""
    if place.file is not None or place.search_below:
        return Match.NO
    if place.has("pytreedef.json"):
        return Match.YES
    is_part = place.location.name.startswith(_OF_ONE_PROCESS)
    # A tree of Orbax has such a database too.
    if is_part or not place.has(format.index_name) or place.has(ORBAX.index_name):
        return Match.NO
    return Match.LIKELY
