"""Hugging Face's sharded checkpoints: safetensors files and a `*.safetensors.index.json`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.formats.format_protocol import (
    FilesBeside,
    Match,
    Opened,
    OpenOptions,
    Place,
    SaveOptions,
    SavePlan,
)
from cordwood.storage.locations import Location, require_local

if TYPE_CHECKING:
    from cordwood.index import Index
    from cordwood.processes.rendezvous import Rendezvous


SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors", re.DOTALL)
_OF_A_TRAINER = re.compile(r"checkpoint-[0-9]+")  # a directory in the output of a Trainer


class ShardsFormat(NamedTuple):
    """Directories with an index of shards, or with a single file.

    The output of a Trainer is its model, with checkpoints in directories beside it. In another
    directory of steps a single file counts only if there is nothing else: it is MAYBE one.
    """

    index_name: str
    description: str
    is_single: bool
    name: str = "safetensors-shards"
    suffixes: tuple[str, ...] = ()

    def matches(self, place: Place) -> Match:
        if place.file is not None:
            return Match.NO
        if self.is_single:
            if not place.has(self.index_name):
                return Match.NO
            if place.search_below:
                return Match.MAYBE
            return Match.LIKELY if _is_of_a_trainer(place.folders) else Match.NO
        if place.search_below:
            return Match.NO
        if fnmatch.filter(place.names, self.index_name):
            return Match.YES
        return Match.LIKELY if any(map(SHARD.fullmatch, place.names)) else Match.NO

    def steps_beside(self, place: Place) -> Sequence[str]:
        from cordwood.formats.stored_step import sorted_steps

        return sorted_steps([name for name in place.folders if _OF_A_TRAINER.fullmatch(name)])

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.hugging_face.shards import open_shards

        del options
        return open_shards(require_local(location), item)

    def files_beside(self, location: Location) -> FilesBeside:
        from cordwood.formats.hugging_face.files_beside_weights import files_beside_weights

        return files_beside_weights(str(require_local(location)))


def _is_of_a_trainer(folders: Collection[str]) -> bool:
    """Return whether the steps among directories are those of a Trainer, and of no manager."""
    from cordwood.formats.stored_step import step_in_name

    return any(map(_OF_A_TRAINER.fullmatch, folders)) and not any(
        step_in_name(name) is not None for name in folders
    )


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
    """The format for the hub, to write: arrays alone, named by their key paths."""

    name = "hugging_face"
    description = "a directory for the Hugging Face hub"
    suffixes: tuple[str, ...] = ()
    index_name = "model.safetensors.index.json"
    save_options = frozenset({"metadata", "max_shard_bytes", "files"})

    def matches(self, place: Place) -> Match:
        """Return NO: such a directory is recognised as one of `ShardsFormat`."""
        del place
        return Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        return SHARDS.open(location, item, options)

    def plan_save(
        self, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.hugging_face.shards import plan_save

        return plan_save(require_local(location), tree, options, rendezvous)

    def refuse_foreign(self, location: Location) -> None:
        from cordwood.formats.hugging_face.shards import refuse_existing

        refuse_existing(require_local(location))

    def losses(self, index: Index, metadata: Mapping[str, str]) -> list[str]:
        from cordwood.formats.hugging_face.shards import losses

        del metadata
        return losses(index, self.name)


HUGGING_FACE = HubFormat()
