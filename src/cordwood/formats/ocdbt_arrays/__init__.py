"""OCDBT databases of zarr arrays, read only: Levanter's checkpoints, and jax's own serialization.

<step>/manifest.ocdbt, d/...                       Levanter: arrays by their key paths
<tree>/pytreedef.json, array_store/manifest.ocdbt  jax.experimental.array_serialization
"""

from __future__ import annotations

from cordwood.formats.format_protocol import Match, Opened, OpenOptions, Place
from cordwood.storage.locations import Location

_ORBAX = "_METADATA"  # a tree of Orbax, which has such a database too
_OF_ONE_PROCESS = "ocdbt.process_"  # a directory of Orbax; it holds a part of the arrays


class OcdbtArraysFormat:
    """Directories with one database of all arrays, read only."""

    name = "ocdbt"
    description = "an OCDBT database of zarr arrays, as Levanter and jax write it"
    suffixes: tuple[str, ...] = ()
    index_name = "manifest.ocdbt"
    reads_stores = True

    def matches(self, place: Place) -> Match:
        if place.file is not None or place.search_below:
            return Match.NO
        if place.has("pytreedef.json"):
            return Match.YES
        is_part = place.location.name.startswith(_OF_ONE_PROCESS)
        if is_part or not place.has(self.index_name) or place.has(_ORBAX):
            return Match.NO
        return Match.LIKELY

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.ocdbt_arrays.read_index import open_database

        del options
        return open_database(location, item)


OCDBT_ARRAYS = OcdbtArraysFormat()
