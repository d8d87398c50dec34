"""The digests of cells in a pool, by which the next save notices what has not changed.

Beside the data objects of a save, each process writes one small object with the digest of every
cell in them. So nothing of a data object is read to compare it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from cordwood.encoding.digests import DIGEST_BYTES, digest_of_parts, has_own_digest, with_own_digest
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError
from cordwood.formats.packs.file_names import PACK_NAME
from cordwood.formats.packs.grid import cell_sizes
from cordwood.formats.packs.packed_tree import PackedTree, view_cell
from cordwood.io.copy_bytes import copy_bytes
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.cells import cells_of_process
from cordwood.plan.file_plan import FilePlan, LiteralBytes
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
    cells = sorted(cells_of_process(tree.assignment, process))
    digests: dict[tuple[int, int], bytes] = {}

    def make_worker() -> Callable[[int], None]:
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            leaf, cell = cells[task]
            value = view_cell(tree, leaves, leaf, cell)

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


def read_cell_digests(store: Storage, name: str) -> dict[str, Mapping[int, bytes]]:
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
    except (CordwoodError, OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        log.warning("%s: %s; all arrays are written", store.name, e)
        return {}
