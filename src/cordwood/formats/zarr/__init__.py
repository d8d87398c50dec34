"""The zarr formats: eFormer's directories, one zarr version 2 array for each leaf; trees of arrays.

docs/format.md is the specification of what cordwood adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cordwood.formats.format_protocol import (
    IndexListing,
    Match,
    Opened,
    OpenOptions,
    Place,
    SaveOptions,
    SavePlan,
)
from cordwood.storage.locations import LocalPath, Location, require_local

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous


_METADATA_NAME, _METADATA3_NAME = ".zarray", "zarr.json"
_MAX_ENTRIES = 10_000  # of a directory that are searched for an array


class ZarrFormat:
    """Directories of zarr arrays with eFormer's index, and with or without cordwood's."""

    name = "zarr"
    description = "a directory of zarr arrays with eFormer's index"
    suffixes: tuple[str, ...] = ()
    index_name = "tensorstore_index.json"
    save_options = frozenset({"prefix", "metadata", "compression"})
    reads_stores = True

    def matches(self, place: Place) -> Match:
        return Match.YES if place.has(self.index_name) else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.zarr.read_index import open_item

        del options
        return open_item(location, item, or_only=True)

    def items(self, location: Location) -> Sequence[str]:
        from cordwood.formats.zarr.read_index import sorted_item_names

        return sorted_item_names(location)

    def list_index(self, path: LocalPath, item: str | None) -> IndexListing | None:
        from cordwood.formats.zarr.read_index import list_index

        return list_index(path, item)

    def plan_save(
        self, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.zarr.write import plan_save

        return plan_save(require_local(location), tree, options, rendezvous)

    def refuse_foreign(self, location: Location) -> None:
        from cordwood.formats.zarr.write import refuse_to_fill

        refuse_to_fill(require_local(location))


class ZarrTreeFormat:
    """Directory trees of zarr arrays without an index, read only."""

    name = "zarr-tree"
    description = "a directory tree of zarr arrays without an index"
    suffixes: tuple[str, ...] = ()
    index_name = f"**/{_METADATA_NAME} or **/{_METADATA3_NAME}"
    reads_stores = True

    def matches(self, place: Place) -> Match:
        if place.file is not None or not place.search_below:
            return Match.NO
        from cordwood.storage.directories import contains_file

        names = (_METADATA_NAME, _METADATA3_NAME)
        directory = place.directory
        if directory is not None:
            is_tree = any(map(directory.contains, names))
        else:
            is_tree = any(contains_file(place.path, name, at_most=_MAX_ENTRIES) for name in names)
        return Match.MAYBE if is_tree else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.zarr.read_tree import open_tree

        return open_tree(location, item, warn=not options.for_verify)


ZARR = ZarrFormat()
ZARR_TREE = ZarrTreeFormat()
