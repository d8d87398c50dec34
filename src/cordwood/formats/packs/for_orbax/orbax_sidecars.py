"""The files beside `cordwood.json` by which Orbax reads the directory too, compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cordwood.formats.packs.item import Item
from cordwood.formats.step_record import ORBAX_KEY
from cordwood.storage.storage_protocol import Sidecar, Storage


class OtherFiles(NamedTuple):
    """The files that are not as the index has them.

    Attributes:
        missing: their paths; a save that was killed at its end has not written them.
        damaged: the paths of the others: no save leaves one that is not of its index.
    """

    missing: list[str]
    damaged: list[str]


def orbax_sidecars(items: Mapping[str, Item]) -> dict[str, Sidecar | None]:
    """Return the files of items, by path; None for one that is not to be there.

    There are none unless the items ask for them.
    """
    if "" not in items or ORBAX_KEY not in items[""].metadata:
        return {}
    from cordwood.formats.packs.for_orbax.orbax_index import orbax_files

    return orbax_files(items)


def other_files(store: Storage, items: Mapping[str, Item]) -> OtherFiles:
    """Compare the files in a directory with the items of its index."""
    files = orbax_sidecars(items) if store.has_links else {}

    def differing() -> dict[str, Sidecar | None]:
        stored = {path: store.read_optional_sidecar(path) for path in files}
        return {path: stored[path] for path, file in files.items() if stored[path] != file}

    if differing():
        store.wait_for_commit(lambda: not differing())  # they are written right after the index
    result = differing()
    missing = [path for path, stored in result.items() if stored is None]
    return OtherFiles(missing, [path for path in result if path not in missing])
