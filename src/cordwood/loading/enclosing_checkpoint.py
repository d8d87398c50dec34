"""The directory of an item for Orbax, in a checkpoint of cordwood: the checkpoint, and its tree."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.formats.load_format import item_names
from cordwood.formats.step_record import ORBAX_NODES_NAME
from cordwood.formats.table import DEFAULT
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import path_exists


class Enclosing(NamedTuple):
    """A checkpoint, and the prefix of a tree in it."""

    location: Location
    prefix: str


def enclosing_checkpoint(location: Location) -> Enclosing | None:
    """Return the checkpoint that a directory describes to Orbax a tree of; None for others.

    `run/100/default` is such a directory: its files link to those of `run/100`, which are read.
    """
    if not isinstance(location, LocalPath):
        return None
    try:
        paths = location.child(ORBAX_NODES_NAME), location.parent.child(DEFAULT.index_name)
        if not all(map(path_exists, paths)):
            return None
    except OSError:  # what opens the checkpoint reports it, and names the index
        return None
    names = item_names(DEFAULT, location.parent)
    return Enclosing(location.parent, location.name if location.name in names else "")
