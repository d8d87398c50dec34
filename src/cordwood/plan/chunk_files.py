"""Assignment of chunk files to the processes that write them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod

from cordwood.plan.file_plan import ChunkFile, PlannedFile
from cordwood.sharding.boxes import ShardGrid, element_count


def assign_chunk_files(
    files: Sequence[PlannedFile], shards: Sequence[ShardGrid], *, process_count: int
) -> list[int]:
    """Return the process that writes each file.

    A chunk is written by a process that holds its shard. If several do, the one with the least
    bytes to write so far gets it; large chunks are assigned first. Process 0 writes the small
    files.

    Args:
        files: the files to write; each chunk is a cell of its leaf, or a part of one.
        shards: the cells of each leaf; `ChunkFile.leaf` is a position in it.
        process_count: the number of processes that save.

    Raises:
        ValueError: a holder is not below `process_count`.
    """
    writers = [0] * len(files)
    loads = [0] * process_count
    shared: list[tuple[int, int, tuple[int, ...]]] = []  # bytes, file, holders
    for number, file in enumerate(files):
        if not isinstance(file, ChunkFile):
            continue
        holders = _chunk_holders(file, shards[file.leaf])
        if max(holders) >= process_count:
            raise ValueError(f"process {max(holders)} holds a shard of {process_count}")
        size = prod(file.shape) * file.itemsize
        if len(holders) > 1:
            shared.append((-size, number, holders))
        else:
            writers[number] = holders[0]
            loads[holders[0]] += size
    for size, number, holders in sorted(shared):
        writers[number] = min(holders, key=loads.__getitem__)
        loads[writers[number]] -= size
    return writers


def _chunk_holders(file: ChunkFile, shards: ShardGrid) -> tuple[int, ...]:
    cell = 0
    for start, starts in zip(file.box.start, shards.cuts, strict=True):
        cell = cell * len(starts) + bisect_right(starts, start) - 1
    return shards.holders[cell]


def chunk_bytes_of_leaves(
    files: Sequence[PlannedFile], written_by: Sequence[int], process: int, leaf_count: int
) -> list[int]:
    """Return the number of bytes of each leaf that a process writes."""
    sizes = [0] * leaf_count
    for file, writer in zip(files, written_by, strict=True):
        if isinstance(file, ChunkFile) and writer == process:
            sizes[file.leaf] += element_count(file.box) * file.itemsize
    return sizes
