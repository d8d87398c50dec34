"""Packs: a directory of safetensors files and one index, `cordwood.json`.

docs/format.md is the specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.format_protocol import (
    IndexListing,
    Match,
    Opened,
    OpenOptions,
    Place,
    SaveOptions,
    SavePlan,
)
from cordwood.storage.locations import LocalPath, Location

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous
    from cordwood.storage.storage_protocol import Garbage, Storage


class PacksFormat:
    """Directories of safetensors files with the index `cordwood.json`."""

    name = "packs"
    description = "a directory of safetensors files with cordwood's index"
    suffixes: tuple[str, ...] = ()
    index_name = "cordwood.json"
    save_options = frozenset({"prefix", "metadata", "max_shard_bytes", "linking", "items"})
    reads_stores = True

    def matches(self, place: Place) -> Match:
        return Match.YES if place.has(self.index_name) else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.packs.open import open_item

        return open_item(location, item, for_verify=options.for_verify)

    def items(self, location: Location) -> Sequence[str]:
        from cordwood.formats.packs.open import item_names

        return item_names(location)

    def list_index(self, path: LocalPath, item: str | None) -> IndexListing | None:
        from cordwood.formats.packs.cordwood_json import list_index

        return list_index(path, item)

    def plan_save(
        self, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.packs.write import plan_save

        return plan_save(location, tree, options, rendezvous)

    def refuse_foreign(self, location: Location) -> None:
        from cordwood.formats.packs.write import refuse_foreign

        refuse_foreign(location)

    def extra_problems(self, location: Location) -> Iterable[str]:
        from cordwood.formats.packs.open import extra_problems

        return extra_problems(location)

    def stale_files(self, location: Location) -> Sequence[str]:
        from cordwood.formats.packs.open import stale_files

        return stale_files(location)

    def collect(self, location: Location, *, dry_run: bool) -> Garbage:
        from cordwood.formats.packs.hub_index import sidecars_of

        store = store_at(location)
        return store.collect(
            dry_run=dry_run, sidecars_of=lambda index: sidecars_of(index, name=store.name)
        )


def store_at(location: Location, *, to_save: bool = False) -> Storage:
    """Return the directory of packs at a path or URL, which need not exist yet.

    Raises UnsupportedFormatError with `to_save` for a URL that can only be read.
    """
    from cordwood.formats.packs.cordwood_json import RULES

    if isinstance(location, LocalPath):
        from cordwood.storage.local_storage import LocalStorage

        return LocalStorage(location, RULES)
    if to_save and location.is_web:
        raise UnsupportedFormatError(
            f"{location.address}: {location.scheme}:// can only be read; expected a path, or a URL "
            "of s3://, gs:// or az:// to save to"
        )
    from cordwood.storage.object_stores.object_storage import ObjectStorage

    return ObjectStorage(location, RULES)


PACKS = PacksFormat()
