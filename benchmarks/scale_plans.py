"""The plans of a save and of a resharded load by one process, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import md5
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from benchmarks.scale_model import DEVICES_PER_PROCESS, StateLeaf, mesh_of, state
from cordwood import dtypes
from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.formats.packs.cordwood_json import encode_index
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.file_names import pack_name
from cordwood.formats.packs.new_packs import new_packs
from cordwood.formats.packs.packed_tree import PackedTree, pack_tree
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import read_index
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.index import Box, HeaderDigest, LeafSpec, Pieces
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.packs import packs_of_all, packs_of_process
from cordwood.sharding.boxes import device_boxes, element_count, shard_grid
from cordwood.storage.local_storage import LocalStorage
from cordwood.tree.flatten import DescribedTree, flatten

__all__ = ["Load", "Save", "plan_load", "plan_save"]

SAVE_ID = "0" * 16


class Save(NamedTuple):
    """The cost of planning the save of the state; the times are those of one process."""

    processes: int
    leaves: int
    cells: int  # parts of leaves, over all processes
    state_bytes: int
    shards_seconds: float  # asking jax which process holds what
    layout_seconds: float  # assigning the writes
    own_seconds: float  # laying out the files of one process, with headers
    fewest_bytes: int  # written by any process
    most_bytes: int
    most_files: int
    header_bytes: int  # of the files of process 0
    merge_seconds: float  # process 0: making the index from all reports
    index_bytes: int

    @property
    def plan_seconds(self) -> float:
        """The seconds of each process before it writes."""
        return self.shards_seconds + self.layout_seconds + self.own_seconds

    @property
    def imbalance(self) -> float:
        """The excess over the mean of the process that writes the most bytes."""
        return self.most_bytes * self.processes / self.state_bytes - 1


class Load(NamedTuple):
    """The cost of planning the load of one process's part of the state."""

    saved: int  # processes that saved it
    loading: int
    tensor: int  # devices that a matrix is cut over along the other axis
    parse_seconds: float  # checking the index
    boxes_seconds: float  # asking jax for the boxes of this process
    pieces_seconds: float  # finding the stored pieces
    plan_seconds: float  # planning reads and copies
    wanted_bytes: int
    read_bytes: int
    reads: int  # ranges of files
    files: int

    @property
    def seconds(self) -> float:
        """The seconds before the first byte is read."""
        return self.parse_seconds + self.boxes_seconds + self.pieces_seconds + self.plan_seconds


def plan_save(processes: int) -> tuple[Save, bytes]:
    """Plan the save of the state; return its cost and its index."""
    leaves, specs, structure = _state(processes, tensor=8)
    clock = _Clock()
    grids: dict[tuple[NamedSharding, tuple[int, ...]], Any] = {}
    shards = []
    for leaf in leaves:
        key = (leaf.sharding, leaf.shape)
        if key not in grids:
            grids[key] = shard_grid(*key)
        shards.append(grids[key])
    shards_seconds = clock.lap()
    described = DescribedTree(structure, tuple(specs), tuple(shards), (), ())
    layout = pack_tree(described, process_count=processes, sizes=LocalStorage.file_sizes)
    layout_seconds = clock.lap()
    packs = packs_of_process(layout.assignment, 0)
    packs_of_0 = new_packs(layout, packs, 0, save_id=SAVE_ID)
    own_seconds = clock.lap()
    header_bytes = [pack.plan.header_bytes for pack in packs_of_0]
    written = _written(layout, header_bytes)
    clock.lap()
    item = encode_item(layout, written, save_id=SAVE_ID)
    index = encode_index({"": item})
    merge_seconds = clock.lap()
    sizes = layout.assignment.bytes_by_process
    save = Save(
        processes=processes,
        leaves=len(leaves),
        cells=sum([grid.cell_count for grid in layout.grids if grid is not None]),
        state_bytes=sum(sizes),
        shards_seconds=shards_seconds,
        layout_seconds=layout_seconds,
        own_seconds=own_seconds,
        fewest_bytes=min(sizes),
        most_bytes=max(sizes),
        most_files=max(map(len, written)),
        header_bytes=sum(header_bytes),
        merge_seconds=merge_seconds,
        index_bytes=len(index),
    )
    return save, index


def plan_load(data: bytes, *, saved: int, loading: int, tensor: int) -> Load:
    """Plan the reads of the first of `loading` processes."""
    leaves, _, _ = _state(loading, tensor=tensor)
    clock = _Clock()
    item = parse_items(data, name="directory")[""]
    parse_seconds = clock.lap()
    boxes_of: dict[tuple[NamedSharding, tuple[int, ...]], tuple[Box, ...]] = {}
    requested = []
    for leaf in leaves:
        key = (leaf.sharding, leaf.shape)
        if key not in boxes_of:
            boxes = device_boxes(*key).items()
            local_boxes = [box for device, box in boxes if device.process_index == 0]
            boxes_of[key] = tuple(dict.fromkeys(local_boxes))
        requested.append(boxes_of[key])
    boxes_seconds = clock.lap()
    index = read_index(item, boxes=requested)
    pieces_seconds = clock.lap()
    plan = plan_boxes(
        index.leaves,
        dict(enumerate(requested)),
        block_bytes=[BLOCK_BYTES] * len(index.sources),
    )
    plan_seconds = clock.lap()
    assert all(isinstance(leaf.storage, Pieces) for leaf in index.leaves)
    reads, read_bytes = _blocks(plan.moves)
    return Load(
        saved=saved,
        loading=loading,
        tensor=tensor,
        parse_seconds=parse_seconds,
        boxes_seconds=boxes_seconds,
        pieces_seconds=pieces_seconds,
        plan_seconds=plan_seconds,
        wanted_bytes=sum(
            element_count(box) * dtypes.itemsize(leaf.dtype)
            for leaf, boxes in zip(leaves, requested, strict=True)
            for box in boxes
        ),
        read_bytes=read_bytes,
        reads=reads,
        files=len({move.source for move in plan.moves}),
    )


class _Clock:
    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def _state(processes: int, *, tensor: int) -> tuple[list[StateLeaf], list[LeafSpec], Any]:
    """Return the leaves in jax's order, their specs, and the structure of the tree."""
    mesh = mesh_of(processes, tensor=min(tensor, processes * DEVICES_PER_PROCESS))
    by_path = {leaf.path: leaf for leaf in state(mesh)}
    tree: dict[str, Any] = {}
    for path in by_path:
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = 0
    flat = flatten(tree)
    leaves = [by_path[path] for path in flat.paths]  # type: ignore[index]
    specs = [LeafSpec(leaf.path, "jax", leaf.shape, leaf.dtype) for leaf in leaves]
    return leaves, specs, flat.structure


def _written(layout: PackedTree, header_bytes: Sequence[int]) -> list[list[WrittenPack]]:
    """Return the reports of all processes. Similar shards have headers of similar size."""
    written = []
    for process, packs in enumerate(packs_of_all(layout.assignment)):
        done = []
        for number, pack in enumerate(packs):
            name = pack_name(SAVE_ID, process, number)
            header = header_bytes[min(number, len(header_bytes) - 1)]
            sealed = HeaderDigest(header, md5(name.encode(), usedforsecurity=False).digest())
            done.append(written_pack(name, header + pack.data_bytes, sealed, None))
        written.append(done)
    return written


def _blocks(moves: Sequence[Any]) -> tuple[int, int]:
    """Return the number of ranges that are read and their bytes, in whole digest blocks."""
    ranges = size = 0
    source = end = -1
    for move in moves:
        start = move.offset // BLOCK_BYTES * BLOCK_BYTES
        stop = -(-(move.offset + move.length) // BLOCK_BYTES) * BLOCK_BYTES
        if move.source != source or start > end:
            ranges += 1
            size += stop - start
            source, end = move.source, stop
        elif stop > end:
            size += stop - end
            end = stop
    return ranges, size
