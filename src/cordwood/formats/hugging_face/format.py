"""The format of directories of shards: recognise them, and the checkpoints of a Trainer in them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence

from cordwood.formats.place import Match, Place
from cordwood.formats.step_names import sorted_steps, step_in_name
from cordwood.formats.table import Format

SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors", re.DOTALL)
_OF_A_TRAINER = re.compile(r"checkpoint-[0-9]+")  # a directory in the output of a Trainer


def matches(format: Format, place: Place) -> Match:
    """Return YES for a directory with an index, LIKELY for one with files named as shards."""
    if place.file is not None or place.search_below:
        return Match.NO
    if fnmatch.filter(place.names, format.index_name):
        return Match.YES
    return Match.LIKELY if any(map(SHARD.fullmatch, place.names)) else Match.NO


def steps_beside(place: Place) -> Sequence[str]:
    """Return the checkpoints that a Trainer wrote into the directory of its model."""
    return sorted_steps([name for name in place.folders if _OF_A_TRAINER.fullmatch(name)])


def is_of_a_trainer(folders: Collection[str]) -> bool:
    """Return whether the steps among directories are those of a Trainer, and of no manager."""
    return any(map(_OF_A_TRAINER.fullmatch, folders)) and not any(
        step_in_name(name) is not None for name in folders
    )
