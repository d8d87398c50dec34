"""Data objects of older steps in an object store, for parts of the tree that have not changed.

Nothing of an older object is read. Beside the data objects of a save, each process writes one small
object with the digest of every cell in them. The next save compares its cells with these digests,
refers to the objects that hold unchanged ones, and writes the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from cordwood.encoding.digests import DIGEST_BYTES, digest_of_parts, has_own_digest, with_own_digest
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError, FormatError
from cordwood.formats.packs.cordwood_json import PACK_NAME, cell_sizes
from cordwood.formats.packs.index_item import PackedTree, written_pack
from cordwood.formats.packs.link_unchanged import NOTHING, Links, base_files, read_item
from cordwood.formats.packs.packs_storage import store_at
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.copy_bytes import copy_bytes
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.cells import cells_of_process
from cordwood.plan.file_plan import FilePlan, LiteralBytes
from cordwood.plan.links import (
    MAX_POOLED_BYTES_PER_LIVE_BYTE,
    cells_at,
    linked_parts,
    should_link,
    should_separate_unchanged,
)
from cordwood.plan.packs import Pack
from cordwood.storage.paths import pooled_name
from cordwood.storage.storage_protocol import NewDataFile, Storage
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import default_threads
from cordwood.threads.thread_pool import run_tasks

_START = b'{"digest":"'
_UNIT_BYTES = 4 << 20
_VERSION = 1

CellDigests: TypeAlias = Mapping[tuple[int, int], bytes]  # by leaf and number of the cell


def digests_of_cells(tree: PackedTree, leaves: Leaves, process: int) -> CellDigests:
    """Return the digests of the cells that a process writes; the leaves are not released."""
    cells = sorted(cells_of_process(tree.shares, process))
    digests: dict[tuple[int, int], bytes] = {}

    def make_worker() -> Callable[[int], None]:
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            leaf, cell = cells[task]
            grid = tree.grids[leaf]
            assert grid is not None
            box = grid.box(cell) if grid.cell_count > 1 else None
            value = leaves.view(tree.first_leaf + leaf, box)

            def parts() -> Iterator[memoryview]:
                for start in range(0, value.nbytes, _UNIT_BYTES):
                    check_stop()
                    view = scratch.view(min(_UNIT_BYTES, value.nbytes - start))
                    copy_bytes(value, start, view)
                    yield view

            digests[leaf, cell] = digest_of_parts(parts())

        return work

    run_tasks(len(cells), threads=default_threads(), make_worker=make_worker)
    return digests


def share_packs(
    target: Storage,
    base: str,
    tree: PackedTree,
    digests: CellDigests,
    *,
    process: int,
    leaves: Leaves,
) -> Links:
    """Refer to the data objects of a step some of whose cells are equal to those of the tree.

    Args:
        target: the step that is saved.
        base: the name of the older step, beside that one.
        tree: the tree.
        digests: of the cells of this process.
        process: the number of this process; it refers to objects that it wrote itself.
        leaves: the leaves of the save; those of which no part remains to be written are dropped.
    """
    store = store_at(target.location.parent.child(base))
    item = read_item(store, tree.prefix)
    if item is None:
        return NOTHING
    packs = []
    cells: set[tuple[int, int]] = set()
    settled: dict[tuple[int, int], int] = {}  # with their sizes
    size_bytes = 0
    remaining = Counter(leaf for leaf, _ in digests)
    known: dict[str, Mapping[int, bytes]] = {}
    files = base_files(item, tree, process)
    missing = frozenset(store.missing([file.source.name for file in files]))
    for source, stored in files:
        if source.name in missing:
            continue
        if source.name not in known:
            known.update(_read_cell_digests(store, source.name))
        old = known.get(source.name, {})
        same = frozenset(
            [
                i
                for i, cell in enumerate(stored)
                if cell.leaf is not None and old.get(cell.offset) == digests[cell.leaf, cell.cell]
            ]
        )
        held = cells_at(stored, same)
        if not should_link(stored, same, bytes_per_live_byte=MAX_POOLED_BYTES_PER_LIVE_BYTE):
            settled.update({held[i]: stored[i].length for i in same})
            continue
        assert source.header_digest is not None
        parts = linked_parts(stored, same)
        packs.append(written_pack(source.name, source.size_bytes, source.header_digest, parts))
        size_bytes += sum([stored[i].length for i in same])
        cells.update(held.values())
        remaining.subtract([leaf for leaf, _ in held.values()])
        for leaf in {leaf for leaf, _ in held.values() if not remaining[leaf]}:
            leaves.drop(tree.first_leaf + leaf)
    apart = frozenset(settled) if should_separate_unchanged(settled.values()) else frozenset()
    return Links(packs, frozenset(cells), apart, size_bytes)


def cell_digests_file(
    tree: PackedTree,
    packs: Sequence[Pack],
    files: Sequence[NewDataFile],
    digests: CellDigests,
    *,
    process: int,
    save_id: str,
) -> NewDataFile:
    """Return the small object with the digests of the cells in new data objects."""
    rows = {}
    for pack, (name, plan) in zip(packs, files, strict=True):
        offset = plan.header_bytes
        row: list[int | str] = []
        for part in pack.parts:
            for leaf in part.leaves:
                tensor, grid = tree.tensors[leaf], tree.grids[leaf]
                assert tensor is not None
                row += [offset, digests[leaf, part.cell].hex()]
                offset += cell_sizes(grid, tensor.itemsize)(part.cell)
        rows[name.rpartition("/")[2]] = row
    body = json.dumps({"version": _VERSION, "files": rows}, separators=(",", ":")).encode()
    data = with_own_digest(_START + b"0" * 2 * DIGEST_BYTES + b'",' + body[1:], len(_START))
    name = pooled_name(save_id, f"cells-{process}.json")
    return NewDataFile(name, FilePlan(len(data), (LiteralBytes(data),)))


def _read_cell_digests(store: Storage, name: str) -> dict[str, Mapping[int, bytes]]:
    """Return the digests of the cells in the data objects of one save and process, by offset.

    They are only an aid: where they are missing or damaged, all is written again.
    """
    match = PACK_NAME.fullmatch(name)
    if match is None or match["pool"] is None:
        return {}
    cells_name = f"{match['pool']}cells-{match['process']}.json"
    try:
        data = store.read_sidecar(cells_name)
        if data is None or not has_own_digest(data, len(_START)):
            return {}
        files = parse_json(data, cells_name)["files"]
        return {
            f"{match['pool']}{file}": {
                offset: bytes.fromhex(digest)
                for offset, digest in zip(row[::2], row[1::2], strict=True)
            }
            for file, row in files.items()
        }
    except (
        CordwoodError,
        FormatError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as e:
        log.warning("%s: %s; all arrays are written", store.name, e)
        return {}
