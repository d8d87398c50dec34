"""The symbolic links that cordwood itself writes into checkpoints: those for Orbax."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.storage.locations import LocalPath
from cordwood.storage.storage_protocol import LinkTo


def foreign_links(path: LocalPath, links: Sequence[str]) -> list[str]:
    """Return the links below a directory, a checkpoint or a run, that cordwood did not write.

    `links` are paths relative to it.
    """
    storage = storage_of(DEFAULT)
    paths_of_checkpoint: dict[str, frozenset[str]] = {}
    foreign = []
    for link in links:
        *above, folder, name = ["", *link.split("/")]
        checkpoint = "/".join([path.text, *above[1:]])
        store = storage.store_at(LocalPath(checkpoint))
        if checkpoint not in paths_of_checkpoint:
            paths_of_checkpoint[checkpoint] = frozenset()
            with suppress(CordwoodError, OSError):
                index = store.read_index()
                if index is not None:
                    paths_of_checkpoint[checkpoint] = storage.RULES.optional_sidecars(index)
        path_in_checkpoint = f"{folder}/{name}"
        is_own = path_in_checkpoint in paths_of_checkpoint[checkpoint]
        if not is_own or store.read_optional_sidecar(path_in_checkpoint) != LinkTo(f"../{name}"):
            foreign.append(link)
    return foreign
