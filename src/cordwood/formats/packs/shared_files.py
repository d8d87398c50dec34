"""The files of an older step that a save shares with it, because little in them has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cordwood.formats.packs.base_files import BaseFile
from cordwood.formats.packs.packed_tree import PackedTree
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.cells import cells_of_process
from cordwood.plan.links import cells_at, linked_parts, should_separate_unchanged


class Comparison(NamedTuple):
    """The comparison of a file of the older step with the tree.

    Attributes:
        unchanged: the positions of the cells that have not changed, as far as was compared.
        is_shared: True if the new step has the file too.
    """

    unchanged: frozenset[int]
    is_shared: bool


class Sharing(Protocol):
    """A way to share files: by hard links on disks, by references in the pool of a store."""

    def share(self, file: BaseFile) -> Comparison | None:
        """Compare a file with the tree, and share it if enough in it is unchanged.

        Returns None where no file of the older step can be shared.
        """
        ...


class SharedFiles(NamedTuple):
    """The files of one process that need not be written.

    Attributes:
        packs: the files.
        cells: the cells of the tree in them: leaf, and number of the cell.
        unchanged: cells to write that have probably not changed. They get files of their own, which
            the next step can share.
        size_bytes: the size of `cells`.
    """

    packs: Sequence[WrittenPack] = ()
    cells: frozenset[tuple[int, int]] = frozenset()
    unchanged: frozenset[tuple[int, int]] = frozenset()
    size_bytes: int = 0


def share_files(
    files: Sequence[BaseFile], sharing: Sharing, tree: PackedTree, leaves: Leaves, process: int
) -> SharedFiles:
    """Share the files of an older step most of whose cells are equal to those of the tree.

    Args:
        files: the files that this process wrote.
        sharing: the way to compare and share each.
        tree: the tree.
        leaves: the leaves of the save; those of which no part remains to be written are dropped.
        process: the number of this process.
    """
    packs: list[WrittenPack] = []
    shared: dict[tuple[int, int], int] = {}  # cells with their sizes
    unchanged: dict[tuple[int, int], int] = {}
    remaining = Counter(leaf for leaf, _ in cells_of_process(tree.assignment, process))
    for file in files:
        comparison = sharing.share(file)
        if comparison is None:
            unchanged.clear()
            break
        stored = file.cells
        cells = cells_at(stored, comparison.unchanged)
        sizes = {cell: stored[i].length for i, cell in cells.items()}
        if not comparison.is_shared:
            unchanged.update(sizes)
            continue
        source, parts = file.source, linked_parts(stored, comparison.unchanged)
        assert source.header_digest is not None
        packs.append(written_pack(source.name, source.size_bytes, source.header_digest, parts))
        shared.update(sizes)
        remaining.subtract([leaf for leaf, _ in sizes])
        for leaf in {leaf for leaf, _ in sizes if not remaining[leaf]}:
            leaves.drop(tree.first_leaf + leaf)
    if not should_separate_unchanged(unchanged.values()):
        unchanged.clear()
    return SharedFiles(packs, frozenset(shared), frozenset(unchanged), sum(shared.values()))
