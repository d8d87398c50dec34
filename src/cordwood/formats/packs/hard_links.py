"""Hard links to files of an older step on a disk.

Every file is read before it is linked, and compared with its digests and with the tree. A damaged
file is not linked: its content is written again, and a line is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.packs.base_files import BaseFile, read_item
from cordwood.formats.packs.compare_with_file import (
    Difference,
    changed_cells,
    check_smallest_difference,
    find_difference,
)
from cordwood.formats.packs.pack_headers import read_pack_digests
from cordwood.formats.packs.packed_tree import PackedTree, view_cell
from cordwood.formats.packs.shared_files import Comparison
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.plan.links import comparison_order, should_link
from cordwood.storage.storage_protocol import Storage, StorageTransaction
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop

_DAMAGE = (CorruptionError, FormatError, OSError)


class HardLinks(NamedTuple):
    """The links of one save: its transaction, and the directory of the older step."""

    transaction: StorageTransaction
    base: Storage
    tree: PackedTree
    leaves: Leaves

    def share(self, file: BaseFile) -> Comparison | None:
        """Link a file if at least half of it is unchanged; None if that is not possible."""
        source, cells = file
        assert source.header_digest is not None

        def value_of(position: int) -> np.ndarray | LazyArray:
            leaf = cells[position].leaf
            assert leaf is not None  # only cells of the tree are compared
            return view_cell(self.tree, self.leaves, leaf, cells[position].cell)

        try:
            (base_file,) = self.base.open([source])
            with base_file:
                unchanged = _unchanged_cells(base_file, file, value_of)
        except _DAMAGE as e:
            self._log_damage(e)
            return Comparison(frozenset(), is_shared=False)
        if not should_link(cells, unchanged):
            return Comparison(unchanged, is_shared=False)
        if not self.transaction.link(self.base.name, source.name):
            return None
        try:
            # What was linked, whatever lies there now.
            with self.transaction.open_linked(source) as linked_file:
                digests = read_pack_digests(linked_file, source.header_digest)
                unchanged -= changed_cells(linked_file, digests, cells, unchanged, value_of)
            is_shared = should_link(cells, unchanged)
        except _DAMAGE as e:
            self._log_damage(e)
            is_shared = False
        if not is_shared:
            self.transaction.unlink_later(source.name)
        return Comparison(unchanged, is_shared)

    def _log_damage(self, error: Exception) -> None:
        """Log that a file is damaged, unless the whole checkpoint has been deleted meanwhile."""
        if read_item(self.base, self.tree.prefix) is not None:
            log.warning("%s; what it held is written anew", error)


def _unchanged_cells(
    file: ReadableFile, base_file: BaseFile, value_of: Callable[[int], np.ndarray | LazyArray]
) -> frozenset[int]:
    """Return the positions of cells that have not changed, as far as a few of their bytes show.

    Raises CorruptionError for a damaged file, which must not be linked.
    """
    source, cells = base_file
    sample, others = comparison_order(cells)
    differences: dict[int, Difference] = {}

    def look(positions: list[int]) -> None:
        for i in positions:
            check_stop()
            difference = find_difference(file, cells[i], value_of(i))
            if difference is not None:
                differences[i] = difference

    look(sample)
    unchanged: frozenset[int] = frozenset()
    if len(differences) < len(sample):
        look(others)
        unchanged = frozenset(
            [i for i, cell in enumerate(cells) if cell.leaf is not None and i not in differences]
        )
    if not should_link(cells, unchanged):  # otherwise all of it is read
        assert source.header_digest is not None
        check_smallest_difference(
            file, partial(read_pack_digests, file, source.header_digest), differences.values()
        )
    return unchanged
