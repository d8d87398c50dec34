"""safetensors: one file that any safetensors reader reads, with tree, leaf kinds and digests.

docs/format.md is the specification of what cordwood adds.
"""

from __future__ import annotations

from functools import partial
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

_MAX_HEADER_BYTES = 100_000_000


class SafetensorsFormat:
    """Files of safetensors, of cordwood or of other programs."""

    name = "safetensors"
    description = "a safetensors file"
    suffixes: tuple[str, ...] = (".safetensors",)
    index_name = ""
    save_options = frozenset({"metadata"})

    def matches(self, place: Place) -> Match:
        if place.file is None:
            return Match.NO
        header_bytes = int.from_bytes(place.head[:8], "little")
        fits = header_bytes <= min(_MAX_HEADER_BYTES, place.file.size_bytes - 8)
        return Match.YES if place.head[8:9] == b"{" and fits else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.safetensors.read_index import read_index
        from cordwood.formats.single_file import open_file

        del item, options
        return open_file(require_local(location), read_index, name=self.name)

    def list_index(self, path: LocalPath, item: str | None) -> IndexListing | None:
        from cordwood.formats.safetensors.read_index import read_index
        from cordwood.io.open_files import LocalFile

        if item is not None:
            return None
        with LocalFile(path) as file:
            index = read_index(file)
        return IndexListing(index, index.metadata)

    def plan_save(
        self, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.safetensors.header import plan_save
        from cordwood.storage.write_files import write_file
        from cordwood.tree.flatten import flatten
        from cordwood.tree.leaves import describe_leaf

        del rendezvous
        flat = flatten(tree)
        specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
        path = require_local(location)
        plan = plan_save(flat.structure, specs, metadata=options.metadata)
        return SavePlan(flat.leaves, partial(write_file, path, plan, page_cache=options.page_cache))

    def refuse_foreign(self, location: Location) -> None:
        from cordwood.formats.safetensors.header import read_header
        from cordwood.formats.single_file import refuse_foreign_file

        refuse_foreign_file(require_local(location), read_header, name=self.name)


SAFETENSORS = SafetensorsFormat()
