"""The leaves of a save by several processes; those that each process holds are compared first."""

from __future__ import annotations

from typing import Any

from cordwood.formats.save_plan import Fetch
from cordwood.formats.tree_shards import Snapshot
from cordwood.processes.collective_save import fingerprints
from cordwood.processes.rendezvous import Rendezvous
from cordwood.tree.leaves import whole_array


class LocalLeaves:
    """The leaves of one process: each is fetched once, for the comparison and for writing.

    Args:
        snapshot: of the tree.
        rendezvous: of the processes that save it.
        fetch: returns a leaf, the caller's or a held one.
    """

    def __init__(self, snapshot: Snapshot, rendezvous: Rendezvous, fetch: Fetch) -> None:
        self._snapshot = snapshot
        self._rendezvous = rendezvous
        self._fetch = fetch
        self._kept: dict[int, Any] = {}  # what was compared and is yet to be written

    def prints(self) -> list[bytes]:
        """Return the fingerprints of this process; process 0 keeps the leaves for `fetch`."""
        structure, specs, shards, _, leaves = self._snapshot
        local = {}
        for leaf in leaves:
            value = self._fetch(leaf)
            if self._rendezvous.index == 0:
                self._kept[leaf] = value
            local[leaf] = whole_array(value)
        return fingerprints(structure, specs, shards, local)

    def look(self, leaf: int, look: Fetch) -> Any:
        """Return a leaf that this process has not begun to write; `look` returns the others."""
        return self._kept[leaf] if leaf in self._kept else look(leaf)

    def fetch(self, leaf: int) -> Any:
        """Return a leaf that this process writes."""
        self._rendezvous.poll()
        return self._kept.pop(leaf) if leaf in self._kept else self._fetch(leaf)
