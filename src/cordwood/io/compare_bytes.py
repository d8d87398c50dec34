"""Whether what lies in a file is still what a tree holds: at a few places, and to the last byte."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.index import Digests
from cordwood.io.check_digests import check_blocks
from cordwood.io.file_contents import FileContents, copy_bytes
from cordwood.io.scratch_buffer import ScratchBuffer
from cordwood.io.threads import reading_threads, run_tasks
from cordwood.io.uninterruptible import StopCheck
from cordwood.plan.deduplicate import StoredCell, should_link
from cordwood.plan.file_plan import LeafBytes, LiteralBytes, Segment
from cordwood.storage.open_files import ReadableFile

Array: TypeAlias = np.ndarray[Any, Any]

_PEEK_BYTES = 4 << 10
_UNIT_BYTES = 4 << 20
_DAMAGED_PART = 1 / 4  # where more differs, it is hardly damage: a bad sector is 1/8 of a look
_NOBODYS = LiteralBytes(b"")


class Difference(NamedTuple):
    """Where a file is not what a value is."""

    offset: int  # in the file, of what was looked at there
    part: float  # of the bytes that were looked at, how many differ: 0 to 1


def find_difference(file: ReadableFile, cell: StoredCell, value: Array) -> Difference | None:
    """Where a cell does not begin, go on in the middle, or end as its value does.

    Raises as reading from the file does.
    """
    size = min(_PEEK_BYTES, cell.length)
    expected = memoryview(bytearray(size))
    last = cell.length - size
    for start in sorted({0, last // 2, last}):
        copy_bytes(value, start, expected)
        found = file.read(cell.offset + start, size)
        if found != expected:
            differing = np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8)
            return Difference(cell.offset + start, float(differing.mean()))
    return None


def check_smallest_difference(
    file: ReadableFile, digests: Callable[[], Digests], found: Iterable[Difference]
) -> None:
    """Check the block where the least differs, which damage may have done.

    Reads nothing where all that was looked at is another, as after a step of training.

    Raises CorruptionError for a block that does not match its digest.
    """
    least = min(found, key=lambda each: each.part, default=None)
    if least is None or least.part > _DAMAGED_PART:
        return
    known = digests()
    block = known.block_bytes
    start = least.offset - (least.offset - known.start) % block
    count = -(-(least.offset + _PEEK_BYTES - start) // block)
    stop = min(start + count * block, file.size_bytes)
    check_blocks(file.name, start, [memoryview(file.read(start, stop - start))], known)


def changed_cells(
    file: ReadableFile,
    digests: Digests,
    cells: Sequence[StoredCell],
    same: frozenset[int],
    value_of: Callable[[int], Array],
    *,
    check: StopCheck,
) -> set[int]:
    """Read and check a whole file; which of the cells at the positions `same` have changed.

    Once so many have that the file is not worth a link, the rest is not looked at.

    Args:
        file: open.
        digests: of all its data.
        cells: all its data.
        same: the positions of those that may be unchanged.
        value_of: gives the value of one; asked once for each, by one thread at a time.
        check: called now and then; what it raises ends it.

    Raises:
        CorruptionError: a block does not match its digest, in a cell or beside it.
        Others: as reading from the file does.
    """
    ends = [cell.offset for cell in cells]
    ends.append(file.size_bytes)
    segments: list[Segment] = [
        LeafBytes(i, 0, cell.length) if i in same else _NOBODYS for i, cell in enumerate(cells)
    ]
    store = FileContents(segments, ends, value_of)
    changed: set[int] = set()
    given_up = False
    block = digests.block_bytes
    step = max(block, _UNIT_BYTES // block * block)

    def make_worker() -> Callable[[int], None]:
        found_bytes, expected_bytes = ScratchBuffer(), ScratchBuffer()

        def work(task: int) -> None:
            nonlocal given_up
            if given_up:
                return
            check()
            start = digests.start + task * step
            stop = min(start + step, file.size_bytes)
            found, expected = found_bytes.view(stop - start), expected_bytes.view(stop - start)
            file.read_into(start, [found])
            check_blocks(file.name, start, [found], digests)
            for first, last in _runs(segments, ends, start, stop):
                a, b = max(start, ends[first]), min(stop, ends[last])
                store.fill(expected[a - start : b - start], first, a - ends[first])
                if _equal(found[a - start : b - start], expected[a - start : b - start]):
                    continue
                for i in range(first, last):
                    here = slice(max(a, ends[i]) - start, min(b, ends[i + 1]) - start)
                    if not _equal(found[here], expected[here]):
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
    """The cells that meet a range of the file, in runs without what is nobody's: first and last
    position, the latter exclusive."""
    runs: list[tuple[int, int]] = []
    for i in range(bisect_right(ends, start) - 1, bisect_left(ends, stop)):
        if segments[i] is _NOBODYS or ends[i + 1] <= start:
            continue
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def _equal(one: memoryview, other: memoryview) -> bool:
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))
