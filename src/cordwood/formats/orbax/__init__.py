"""Orbax checkpoints, read only: zarr arrays in files or in an OCDBT database.

docs/format.md says what is read of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.formats.format_protocol import Match, Opened, OpenOptions, Place
from cordwood.storage.locations import LocalPath, Location


class OrbaxFormat:
    """Checkpoints of Orbax, read only."""

    name = "orbax"
    description = "an Orbax checkpoint"
    suffixes: tuple[str, ...] = ()
    index_name = "_METADATA"
    tool = "Orbax"
    reads_stores = True

    def matches(self, place: Place) -> Match:
        """Return LIKELY if an item of the directory has the index, and the directory has none."""
        if place.file is not None or place.search_below:
            return Match.NO
        if self.index_name in place.names:
            return Match.YES
        from cordwood.formats.orbax.locate_trees import is_checkpoint_at

        return Match.LIKELY if is_checkpoint_at(place) else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.orbax.read_index import open_item

        return open_item(location, item, warn=not options.for_verify)

    def items(self, location: Location) -> Sequence[str]:
        from cordwood.formats.orbax.locate_trees import item_names

        return item_names(location)

    def is_at(self, place: Place) -> bool:
        from cordwood.formats.orbax.locate_trees import is_at

        return is_at(place)

    def steps_at(self, place: Place) -> Sequence[str]:
        from cordwood.formats.orbax.locate_trees import steps_at

        return steps_at(place)

    def is_unfinished(self, place: Place) -> bool:
        from cordwood.formats.orbax.locate_trees import is_unfinished_at

        return is_unfinished_at(place)

    def refuse_unfinished(self, path: LocalPath) -> None:
        from cordwood.formats.orbax.locate_trees import refuse_unfinished

        refuse_unfinished(path)

    def other_items(self, location: Location) -> Mapping[str, str]:
        from cordwood.formats.orbax.locate_trees import other_items

        return other_items(location)


ORBAX = OrbaxFormat()
