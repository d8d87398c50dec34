"""References to data objects of an older step, in the pool of a run in an object store.

Nothing of an object is read: it is compared by the digests of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.formats.packs.base_files import BaseFile
from cordwood.formats.packs.cell_digests import CellDigests, read_cell_digests
from cordwood.formats.packs.shared_files import Comparison
from cordwood.plan.links import MAX_POOLED_BYTES_PER_LIVE_BYTE, should_link
from cordwood.storage.storage_protocol import Storage


class PoolReferences:
    """The references of one save.

    Args:
        base: the older step.
        files: its files that this process wrote.
        digests: of the cells of the tree that this process is to write.
    """

    def __init__(self, base: Storage, files: Sequence[BaseFile], digests: CellDigests) -> None:
        self._base = base
        self._missing = frozenset(base.missing([file.source.name for file in files]))
        self._digests = digests
        self._base_digests: dict[str, Mapping[int, bytes]] = {}  # by object and offset

    def share(self, file: BaseFile) -> Comparison:
        """Refer to an object if a small part of it is unchanged."""
        name, cells = file.source.name, file.cells
        if name in self._missing:
            return Comparison(frozenset(), is_shared=False)
        if name not in self._base_digests:
            self._base_digests.update(read_cell_digests(self._base, name))
        base_digests = self._base_digests.get(name, {})
        unchanged = frozenset(
            [
                i
                for i, (leaf, cell, offset, _) in enumerate(cells)
                if leaf is not None and base_digests.get(offset) == self._digests[leaf, cell]
            ]
        )
        return Comparison(
            unchanged,
            should_link(cells, unchanged, bytes_per_live_byte=MAX_POOLED_BYTES_PER_LIVE_BYTE),
        )
