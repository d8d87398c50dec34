"""Comparison of a stored file with the leaves of a tree: a few samples first, then every byte."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cordwood.index import Digests
from cordwood.io.check_digests import check_blocks
from cordwood.io.copy_bytes import copy_bytes
from cordwood.io.file_contents import FileContents
from cordwood.io.lazy_array import LazyArray
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.open_files import ReadableFile
from cordwood.plan.file_plan import LeafBytes, LiteralBytes, Segment
from cordwood.plan.links import StoredCell, should_link
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks

_PEEK_BYTES = 4 << 10
_UNIT_BYTES = 4 << 20
_DAMAGED_PART = 1 / 4  # more is hardly damage: a bad sector is 1/8 of the bytes of a sample
_UNUSED = LiteralBytes(b"")


class Difference(NamedTuple):
    """A sample in which a file and a value differ."""

    offset: int  # of the sample in the file
    part: float  # the fraction of its bytes that differ: 0 to 1


def find_difference(
    file: ReadableFile, cell: StoredCell, value: np.ndarray | LazyArray
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
    value_of: Callable[[int], np.ndarray | LazyArray],
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
