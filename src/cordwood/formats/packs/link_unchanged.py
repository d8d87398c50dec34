"""Hard links to files of an older checkpoint, for parts of the tree that have not changed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import CordwoodError, CorruptionError, FormatError
from cordwood.formats.packs.cordwood_json import PACK_NAME, type_of
from cordwood.formats.packs.index_item import (
    Item,
    PackedTree,
    WrittenPack,
    cells_of_file,
    parse_items,
    sealed_digests,
    written_pack,
)
from cordwood.formats.packs.packs_storage import store_at
from cordwood.index import Digests, Source, leaf_paths
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.check_digests import check_blocks
from cordwood.io.copy_bytes import copy_bytes
from cordwood.io.file_contents import FileContents
from cordwood.io.lazy_array import Array, LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.plan.cells import cells_of_process
from cordwood.plan.file_plan import LeafBytes, LiteralBytes, Segment
from cordwood.plan.links import (
    StoredCell,
    cells_at,
    comparison_order,
    linked_parts,
    should_link,
    should_separate_unchanged,
)
from cordwood.storage.storage_protocol import Storage, StorageTransaction
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks


class Links(NamedTuple):
    """The files of one process that need not be written."""

    packs: list[WrittenPack]
    cells: frozenset[tuple[int, int]]  # the cells of the tree in them: leaf, and number of the cell
    settled: frozenset[tuple[int, int]]  # cells to write that have probably not changed
    size_bytes: int  # of the cells


NOTHING = Links([], frozenset(), frozenset(), 0)


def link_packs(
    save: StorageTransaction,
    target: Storage,
    base: str,
    tree: PackedTree,
    *,
    process: int,
    leaves: Leaves,
) -> Links:
    """Link the files of a checkpoint most of whose cells are equal to those of the tree.

    Every file is read before it is linked, and compared with its digests and with the tree. A
    damaged file is not linked: its content is written again, and a line is logged.

    Args:
        save: the transaction, which has begun.
        target: the directory that is saved.
        base: the name of the checkpoint, a directory beside that one.
        tree: the tree.
        process: the number of this process; it links files that it wrote itself.
        leaves: the leaves of the save; those of which no part remains to be written are dropped.
    """
    store = store_at(target.location.parent.child(base))
    base_item = read_item(store, tree.prefix)
    if not store.has_links or base_item is None:
        return NOTHING
    packs: list[WrittenPack] = []
    cells: set[tuple[int, int]] = set()
    settled: dict[tuple[int, int], int] = {}  # with their sizes
    size_bytes = 0
    remaining = Counter(leaf for leaf, _ in cells_of_process(tree.shares, process))
    for base_file in base_files(base_item, tree, process):
        source, stored = base_file
        value_of = partial(_value, tree, base_file, leaves)
        try:
            (file,) = store.open([source])
            with file:
                same = _unchanged_cells(file, base_file, value_of)
        except (CorruptionError, FormatError, OSError) as e:
            _log_damage(store, tree.prefix, e)
            continue
        held = cells_at(stored, same)
        sizes = {held[i]: stored[i].length for i in same}
        if not should_link(stored, same):
            settled.update(sizes)
            continue
        if not save.link(store.name, source.name):
            return NOTHING if not packs else Links(packs, frozenset(cells), frozenset(), size_bytes)
        try:
            assert source.header_digest is not None
            (file,) = target.open([source])  # what was linked, whatever lies there now
            with file:
                digests = sealed_digests(file, source.header_digest)
                same -= changed_cells(file, digests, stored, same, value_of)
        except (CorruptionError, FormatError, OSError) as e:
            save.unlink_later(source.name)
            settled.update(sizes)
            _log_damage(store, tree.prefix, e)
            continue
        if not should_link(stored, same):
            save.unlink_later(source.name)
            settled.update({held[i]: stored[i].length for i in same})
            continue
        parts = linked_parts(stored, same)
        packs.append(written_pack(source.name, source.size_bytes, source.header_digest, parts))
        size_bytes += sum([stored[i].length for i in same])
        cells.update([held[i] for i in same])
        remaining.subtract([held[i][0] for i in same])
        for leaf in {held[i][0] for i in same if not remaining[held[i][0]]}:
            leaves.drop(tree.first_leaf + leaf)
    apart = frozenset(settled) if should_separate_unchanged(settled.values()) else frozenset()
    return Links(packs, frozenset(cells), apart, size_bytes)


def read_item(store: Storage, prefix: str) -> Item | None:
    """Return an item of a checkpoint; None if it has just been deleted, or cannot be read."""
    with suppress(CordwoodError, OSError):
        data = store.read_index()
        if data is not None:
            return parse_items(data, name=store.name).get(prefix)
    return None


def _value(tree: PackedTree, file: BaseFile, leaves: Leaves, position: int) -> Array | LazyArray:
    leaf, cell, _, _ = file.cells[position]
    assert leaf is not None  # only cells of the tree are compared
    grid = tree.grids[leaf]
    assert grid is not None
    return leaves.view(tree.first_leaf + leaf, grid.box(cell) if grid.cell_count > 1 else None)


def _unchanged_cells(
    file: ReadableFile, base_file: BaseFile, value_of: Callable[[int], Array | LazyArray]
) -> frozenset[int]:
    """Return the positions of cells that have not changed, as far as a few of their bytes show.

    Raises CorruptionError for a damaged file, which must not be linked.
    """
    source, cells = base_file
    sample, rest = comparison_order(cells)
    gone: dict[int, Difference] = {}

    def look(positions: list[int]) -> None:
        for i in positions:
            check_stop()
            difference = find_difference(file, cells[i], value_of(i))
            if difference is not None:
                gone[i] = difference

    look(sample)
    same: frozenset[int] = frozenset()
    if len(gone) < len(sample):
        look(rest)
        same = frozenset(
            [i for i, cell in enumerate(cells) if cell.leaf is not None and i not in gone]
        )
    if not should_link(cells, same):  # otherwise all of it is read
        assert source.header_digest is not None
        check_smallest_difference(
            file, partial(sealed_digests, file, source.header_digest), gone.values()
        )
    return same


def _log_damage(store: Storage, prefix: str, error: Exception) -> None:
    """Log that a file is damaged, unless the whole checkpoint has been deleted meanwhile."""
    if read_item(store, prefix) is not None:
        log.warning("%s; what it held is written anew", error)


class BaseFile(NamedTuple):
    """A file, and the cells in it that this process would write again if nothing had changed."""

    source: Source
    cells: tuple[StoredCell, ...]  # all of its data; leaves are those of the tree to be saved


def base_files(item: Item, tree: PackedTree, process: int) -> list[BaseFile]:
    """Return the files that a process wrote and may link.

    A cell counts as the same where its leaf has the same key path, name, type, shape and cuts, and
    the process is to write that cell again. Its bytes are not compared here.

    Args:
        item: the item of the older checkpoint.
        tree: the tree to be saved.
        process: the number of the process.
    """
    leaves = _same_leaves(item, tree)
    cells_to_write = cells_of_process(tree.shares, process)
    files = []
    for number, pack in enumerate(item.packs):
        name = PACK_NAME.fullmatch(pack.source.name)
        if name is None or int(name["process"]) != process:
            continue
        cells = tuple(_cells(item, number, leaves, cells_to_write))
        if any(cell.leaf is not None for cell in cells):
            files.append(BaseFile(pack.source, cells))
    return files


def _same_leaves(item: Item, tree: PackedTree) -> list[int | None]:
    """Return for each leaf of the item the leaf of the tree that is stored alike, or None."""
    paths = leaf_paths(item.structure)
    kinds = item.leaf_types.tolist()
    stored = [i for i, kind in enumerate(kinds) if item.types[kind].grid is not None]
    names = tensor_names([paths[i] for i in stored]).names
    stored_leaves = {paths[i]: (name, i) for name, i in zip(names, stored, strict=True)}
    leaves: list[int | None] = [None] * len(kinds)
    ours = [leaf for leaf, tensor in enumerate(tree.tensors) if tensor is not None]
    names = tensor_names([tree.described.specs[leaf].key_path for leaf in ours]).names
    for name, leaf in zip(names, ours, strict=True):
        spec = tree.described.specs[leaf]
        stored_leaf = stored_leaves.get(spec.key_path)
        if stored_leaf is None:
            continue
        stored_name, i = stored_leaf
        packed = type_of(spec, tree.tensors[leaf], tree.grids[leaf])
        if stored_name == name and item.types[kinds[i]] == packed:
            leaves[i] = leaf
    return leaves


def _cells(
    item: Item, number: int, leaves: list[int | None], cells_to_write: set[tuple[int, int]]
) -> Iterator[StoredCell]:
    """Yield all cells of the data of a file, gaps included."""
    for stored_leaf, cell, offset, length in cells_of_file(item, number):
        leaf = None if stored_leaf is None else leaves[stored_leaf]
        mine = leaf is not None and (leaf, cell) in cells_to_write
        yield StoredCell(leaf if mine else None, cell, offset, length)


# Comparison of a file with the leaves of the tree: a few samples first, then every byte

_PEEK_BYTES = 4 << 10
_UNIT_BYTES = 4 << 20
_DAMAGED_PART = 1 / 4  # more is hardly damage: a bad sector is 1/8 of the bytes of a sample
_UNUSED = LiteralBytes(b"")


class Difference(NamedTuple):
    """A sample in which a file and a value differ."""

    offset: int  # of the sample in the file
    part: float  # the fraction of its bytes that differ: 0 to 1


def find_difference(
    file: ReadableFile, cell: StoredCell, value: Array | LazyArray
) -> Difference | None:
    """Compare a cell with its value at its start, middle and end; return the first difference.

    Raises as reading from the file does.
    """
    size = min(_PEEK_BYTES, cell.length)
    expected = memoryview(bytearray(size))
    last = cell.length - size
    for start in sorted({0, last // 2, last}):
        copy_bytes(value, start, expected)
        stored = file.read(cell.offset + start, size)
        if stored != expected:
            differing = np.frombuffer(stored, np.uint8) != np.frombuffer(expected, np.uint8)
            return Difference(cell.offset + start, float(differing.mean()))
    return None


def check_smallest_difference(
    file: ReadableFile, digests: Callable[[], Digests], differences: Iterable[Difference]
) -> None:
    """Check the digest of the block with the smallest difference, which damage may have caused.

    Reads nothing if every sample differs much, as after a step of training.

    Raises CorruptionError for a block that does not match its digest.
    """
    least = min(differences, key=lambda each: each.part, default=None)
    if least is None or least.part > _DAMAGED_PART:
        return
    file_digests = digests()
    block = file_digests.block_bytes
    start = least.offset - (least.offset - file_digests.start) % block
    count = -(-(least.offset + _PEEK_BYTES - start) // block)
    stop = min(start + count * block, file.size_bytes)
    check_blocks(file.name, start, [memoryview(file.read(start, stop - start))], file_digests)


def changed_cells(
    file: ReadableFile,
    digests: Digests,
    cells: Sequence[StoredCell],
    same: frozenset[int],
    value_of: Callable[[int], Array | LazyArray],
) -> set[int]:
    """Read and check a whole file; return which cells at the positions `same` have changed.

    Stops early once so many cells have changed that the file is not worth a link.

    Args:
        file: the open file.
        digests: the digests of all its data.
        cells: the cells of all its data.
        same: the positions of the cells that may be unchanged.
        value_of: returns the value of a cell; called once for each, by one thread at a time.

    Raises:
        CorruptionError: a block does not match its digest, in a cell or outside of the cells.
        Others: as reading from the file does, and what `check_stop` raises.
    """
    ends = [cell.offset for cell in cells]
    ends.append(file.size_bytes)
    segments: list[Segment] = [
        LeafBytes(i, 0, cell.length) if i in same else _UNUSED for i, cell in enumerate(cells)
    ]
    store = FileContents(segments, ends, lambda cell, _: value_of(cell))
    changed: set[int] = set()
    given_up = False
    block = digests.block_bytes
    step = max(block, _UNIT_BYTES // block * block)

    def make_worker() -> Callable[[int], None]:
        stored_buffer, expected_buffer = ScratchBuffer(), ScratchBuffer()

        def work(task: int) -> None:
            nonlocal given_up
            if given_up:
                return
            check_stop()
            start = digests.start + task * step
            stop = min(start + step, file.size_bytes)
            stored = stored_buffer.view(stop - start)
            expected = expected_buffer.view(stop - start)
            file.read_into(start, [stored])
            check_blocks(file.name, start, [stored], digests)
            for first, last in _runs(segments, ends, start, stop):
                a, b = max(start, ends[first]), min(stop, ends[last])
                store.fill(expected[a - start : b - start], first, a - ends[first])
                if _equal(stored[a - start : b - start], expected[a - start : b - start]):
                    continue
                for i in range(first, last):
                    here = slice(max(a, ends[i]) - start, min(b, ends[i + 1]) - start)
                    if not _equal(stored[here], expected[here]):
                        changed.add(i)
                given_up = not should_link(cells, same - changed)

        return work

    tasks = -(-(file.size_bytes - digests.start) // step)
    run_tasks(
        tasks, threads=reading_threads(latency_bound=file.latency_bound), make_worker=make_worker
    )
    return changed


def _runs(
    segments: Sequence[Segment], ends: Sequence[int], start: int, stop: int
) -> list[tuple[int, int]]:
    """Return the runs of neighbouring cells that overlap a range of the file.

    A run is its first position and its last one, exclusive; unused segments separate runs.
    """
    runs: list[tuple[int, int]] = []
    for i in range(bisect_right(ends, start) - 1, bisect_left(ends, stop)):
        if segments[i] is _UNUSED or ends[i + 1] <= start:
            continue
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def _equal(one: memoryview, other: memoryview) -> bool:
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))
