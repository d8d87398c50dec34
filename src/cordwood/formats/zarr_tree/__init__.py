"""Zarr trees, read only: directories of zarr arrays without an index."""

from __future__ import annotations

from cordwood.formats.format_protocol import Match, Opened, OpenOptions, Path, Place

_METADATA_NAME = ".zarray"
_MAX_ENTRIES = 10_000  # of a directory that are searched for an array


class ZarrTreeFormat:
    """Directory trees of zarr arrays without an index, read only."""

    name = "zarr-tree"
    description = "a directory tree of zarr arrays without an index"
    suffixes: tuple[str, ...] = ()
    index_name = f"**/{_METADATA_NAME}"

    def matches(self, place: Place) -> Match:
        if place.file is not None or not place.search_below:
            return Match.NO
        from cordwood.storage.directories import contains_file

        is_tree = contains_file(place.path, _METADATA_NAME, at_most=_MAX_ENTRIES)
        return Match.MAYBE if is_tree else Match.NO

    def open(self, path: Path, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.zarr_tree.open import open_tree

        del options
        return open_tree(path, item)


ZARR_TREE = ZarrTreeFormat()
