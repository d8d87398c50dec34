"""Hugging Face's sharded checkpoints: safetensors files and a `*.safetensors.index.json`."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.formats.format_protocol import (
    Match,
    Opened,
    OpenOptions,
    Path,
    Place,
    SaveOptions,
    SavePlan,
)
from cordwood.storage.paths import path_exists

if TYPE_CHECKING:
    from cordwood.index import Index
    from cordwood.processes.rendezvous import Rendezvous


class ShardsFormat(NamedTuple):
    """Directories with an index of shards, or with a single file.

    A single file may lie in a directory of steps as well: such a directory is only MAYBE one.
    """

    index_name: str
    description: str
    is_single: bool
    name: str = "safetensors-shards"
    suffixes: tuple[str, ...] = ()

    def matches(self, place: Place) -> Match:
        if place.file is not None or place.search_below != self.is_single:
            return Match.NO
        if self.is_single:
            has_file = path_exists(f"{place.path}/{self.index_name}")
            return Match.MAYBE if has_file else Match.NO
        return Match.YES if fnmatch.filter(place.names, self.index_name) else Match.NO

    def open(self, path: Path, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.hugging_face.shards import open_shards

        del options
        return open_shards(path, item)


SHARDS = ShardsFormat(
    "*.safetensors.index.json",
    "a directory of safetensors files with the index of Hugging Face",
    False,
)
SINGLE_FILE = ShardsFormat(
    "model.safetensors",
    "a directory with a model.safetensors, as the Hugging Face hub has it",
    True,
)


class HubFormat:
    """The format of `convert` for the hub: arrays alone, named by their key paths."""

    name = "hugging_face"
    description = "a directory for the Hugging Face hub"
    suffixes: tuple[str, ...] = ()
    index_name = "model.safetensors.index.json"
    save_options = frozenset({"metadata", "max_shard_bytes"})

    def matches(self, place: Place) -> Match:
        """Return NO: such a directory is recognised as one of `ShardsFormat`."""
        del place
        return Match.NO

    def open(self, path: Path, item: str | None, options: OpenOptions) -> Opened:
        return SHARDS.open(path, item, options)

    def plan_save(
        self, path: Path, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.hugging_face.shards import plan_save

        return plan_save(path, tree, options, rendezvous)

    def refuse_foreign(self, path: Path) -> None:
        from cordwood.formats.hugging_face.shards import refuse_existing

        refuse_existing(path)

    def losses(self, index: Index, metadata: Mapping[str, str]) -> list[str]:
        from cordwood.formats.hugging_face.shards import losses

        del metadata
        return losses(index, self.name)


HUGGING_FACE = HubFormat()
