"""Indexes for Orbax that are added to checkpoints, or to the steps of a run, that exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.list_steps import steps_in
from cordwood.formats.load_format import records_of, storage_of
from cordwood.formats.orbax_option import conversion_to_disk
from cordwood.formats.place import Place
from cordwood.formats.table import DEFAULT
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.locations import LocalPath, Url
from cordwood.storage.storage_protocol import IndexChange, Sidecar
from cordwood.threads.run_in_worker import run_in_worker


class OrbaxIndex(NamedTuple):
    """An index for Orbax that was added.

    Attributes:
        path: the path of the checkpoint.
        added_bytes: the size of its files.
        links: the number of its symbolic links.
    """

    path: str
    added_bytes: int
    links: int


def steps_to_index(root: LocalPath) -> list[LocalPath]:
    """Return the steps of a run that cordwood has saved. Those of other tools are left out."""
    store_at = storage_of(DEFAULT).store_at
    steps = [root.child(name) for name in steps_in(Place(root))]
    return [step for step in steps if store_at(step).read_index() is not None]


def add_orbax_index(location: LocalPath | Url, item: str | None) -> OrbaxIndex:
    """Add an index for Orbax to a checkpoint, or write it again; atomically and durably.

    Args:
        location: the checkpoint.
        item: the name of its tree for Orbax; None: the usual one.

    Raises:
        FileNotFoundError, IncompleteCheckpointError: there is no directory that cordwood saved.
        UnsupportedLeafError, ValueError, PrefixError: Orbax could not read it.
        UnsupportedFormatError: it is in an object store.
        NotACheckpointError: files of others are in the way.
    """
    if isinstance(location, Url):
        raise UnsupportedFormatError(
            f"{location}: an index for Orbax needs links, which object stores lack; "
            f"{conversion_to_disk(location, item='')}"
        )
    storage = storage_of(DEFAULT)
    store = storage.store_at(location, to_save=True)
    sidecars: Mapping[str, Sidecar | None] = {}

    def change(index: bytes | None) -> IndexChange:
        nonlocal sidecars
        if index is None:  # it was removed meanwhile
            index = storage.require_index(store)
        result = records_of(DEFAULT).change_for_orbax(index, item, name=store.name)
        sidecars = result.optional_sidecars
        return result

    def commit() -> None:
        with store.transaction(others_commit=False, timeout_seconds=TIMEOUT_SECONDS) as save:
            save.commit(change)

    change(storage.require_index(store))  # what is refused is refused before anything is written
    run_in_worker(commit)
    files = sidecars.values()
    sizes = [len(file) for file in files if isinstance(file, bytes)]
    links = sum(file is not None for file in files) - len(sizes)
    return OrbaxIndex(store.name, sum(sizes), links)
