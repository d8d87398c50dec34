"""Write the packs of one process: what is unchanged is shared, everything else is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from cordwood.formats.packs.base_files import base_files, read_item
from cordwood.formats.packs.cell_digests import CellDigests, cell_digests_file
from cordwood.formats.packs.hard_links import HardLinks
from cordwood.formats.packs.new_packs import new_packs
from cordwood.formats.packs.packed_tree import PackedTree
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.packs.pool_references import PoolReferences
from cordwood.formats.packs.shared_files import SharedFiles, Sharing, share_files
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import leaves_of
from cordwood.plan.links import select_cells
from cordwood.plan.packs import Pack, packs_of_process, packs_of_ranges
from cordwood.storage.storage_protocol import Storage, StorageTransaction


def share_unchanged(
    transaction: StorageTransaction,
    store: Storage,
    base: str,
    tree: PackedTree,
    digests: CellDigests | None,
    leaves: Leaves,
    process: int,
    *,
    is_unshared: bool,
) -> SharedFiles:
    """Share the files of an older step that hold unchanged cells of a tree.

    Args:
        transaction: the transaction, which has begun.
        store: the directory that is saved.
        base: the name of the older step, a directory beside that one.
        tree: the tree.
        digests: of the cells of this process, in an object store; None on a disk.
        leaves: the leaves of the save; those of which no part remains to be written are dropped.
        process: the number of this process; it shares files that it wrote itself.
        is_unshared: True if the older step may have some of its files in other roots.
    """
    base_store = store_at(store.location.parent.child(base))
    item = read_item(base_store, tree.prefix)
    if item is None:
        return SharedFiles()
    files = base_files(item, tree, process)
    if is_unshared:
        names = set(base_store.names())
        files = [file for file in files if file.source.name in names]
    sharing: Sharing
    if digests is None:
        sharing = HardLinks(transaction, base_store, tree, leaves)
    else:
        sharing = PoolReferences(base_store, files, digests)
    return share_files(files, sharing, tree, leaves, process)


def write_packs(
    transaction: StorageTransaction,
    trees: Sequence[PackedTree],
    shared: Sequence[SharedFiles],
    digests: Sequence[CellDigests],
    leaves: Leaves,
    *,
    process: int,
    save_ids: Sequence[str],
) -> list[list[WrittenPack]]:
    """Write the files of this process; return them by tree, as process 0 needs them.

    Args:
        transaction: the transaction, which has begun.
        trees: the trees.
        shared: of each tree, the files that are shared.
        digests: of the cells of each tree, if the files go to the pool of a run; else empty.
        leaves: the leaves of all trees.
        process: the number of this process.
        save_ids: of each tree, 16 hexadecimal digits, the same on every process.
    """
    packs = [_packs_to_write(*each, process) for each in zip(trees, shared, strict=True)]
    files = [
        new_packs(tree, contents, process, save_id=save_id, in_pool=bool(digests))
        for tree, contents, save_id in zip(trees, packs, save_ids, strict=True)
    ]
    every_file = list(chain.from_iterable(files))
    for number, cell_digests in enumerate(digests):
        if files[number]:
            every_file.append(
                cell_digests_file(
                    trees[number],
                    packs[number],
                    files[number],
                    cell_digests,
                    process=process,
                    save_id=save_ids[number],
                )
            )
    leaves.expect([leaf for file in every_file for leaf in leaves_of(file.plan.segments)])
    header_digests = iter(transaction.write(every_file, leaves))
    written = []
    for each, contents, new_files in zip(shared, packs, files, strict=True):
        # Every process can compute the contents of files itself, unless some are shared.
        is_computable = not each.packs and not each.unchanged
        new = [
            written_pack(
                file.name,
                file.plan.size_bytes,
                next(header_digests),
                None if is_computable else pack.parts,
            )
            for file, pack in zip(new_files, contents, strict=True)
        ]
        written.append([*each.packs, *new])
    return written


def _packs_to_write(tree: PackedTree, shared: SharedFiles, process: int) -> Sequence[Pack]:
    """Return the packs to write. Unchanged cells get packs of their own, to be shared next time."""
    assignment = tree.assignment
    if not shared.packs and not shared.unchanged:
        return packs_of_process(assignment, process)
    cells = select_cells(assignment, assignment.by_process[process], shared.cells, keep=False)
    return [
        *packs_of_ranges(assignment, select_cells(assignment, cells, shared.unchanged, keep=True)),
        *packs_of_ranges(assignment, select_cells(assignment, cells, shared.unchanged, keep=False)),
    ]
