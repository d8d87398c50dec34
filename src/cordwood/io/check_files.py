"""The verification of whole files by their digests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cordwood.encoding.digests import check_coverage
from cordwood.index import Digests
from cordwood.io.check_digests import bad_blocks
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.open_files import ReadableFile
from cordwood.io.progress import METER
from cordwood.io.unreadable_range import unreadable_range
from cordwood.io.verify_sample import VerifySample
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks

_UNIT_BYTES = 4 << 20


def check_files(
    files: Sequence[tuple[ReadableFile, Digests]],
    sample: VerifySample | None = None,
    within: Sequence[tuple[int, int]] | None = None,
) -> list[list[tuple[int, int]]]:
    """Read files; return for each the byte ranges of the blocks that do not match.

    With a sample, only the blocks that it chooses are read; with `within`, only those that begin in
    the range of each file. A block that the disk cannot read (EIO) is among the ranges, as an
    UnreadableRange.
    Raises CorruptionError if the digests are not for a file of that size.
    """
    meter = METER.get()
    bad: list[list[tuple[int, int]]] = [[] for _ in files]
    remaining = [0] * len(files)  # ranges of each file that are not read yet
    tasks: list[tuple[int, int, int]] = []
    for number, (file, digests) in enumerate(files):
        check_coverage(file.name, file.size_bytes, digests)
        whole = (digests.start, file.size_bytes)
        blocks = whole if within is None else _blocks_within(within[number], whole, digests)
        ranges = _unit_ranges([blocks], digests.block_bytes)
        if sample is not None:
            if sample.was_verified(file.name, file.size_bytes, digests):
                continue
            ranges = sample.choose(ranges)
            sample.checked_bytes += sum([stop - start for start, stop in ranges])
            if not ranges:
                sample.record_verified(file.name, file.size_bytes, digests)
        remaining[number] = len(ranges)
        tasks += [(number, start, stop) for start, stop in ranges]
    lock = threading.Lock()

    def make_worker() -> Callable[[int], None]:
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            number, start, stop = tasks[task]
            file, digests = files[number]
            bad[number].extend(_read_and_check(file, digests, start, scratch.view(stop - start)))
            if meter is not None:
                meter.advance(stop - start, file.name)
            with lock:
                remaining[number] -= 1
                if sample is not None and not remaining[number] and not bad[number]:
                    sample.record_verified(file.name, file.size_bytes, digests)

        return work

    threads = reading_threads(latency_bound=any(file.latency_bound for file, _ in files))
    run_tasks(len(tasks), threads=threads, make_worker=make_worker)
    return [sorted(ranges) for ranges in bad]


def _read_and_check(
    file: ReadableFile, digests: Digests, start: int, part: memoryview
) -> list[tuple[int, int]]:
    """Read whole blocks into `part`; return the ranges that do not match or cannot be read."""
    try:
        file.read_into(start, [part])
    except OSError as e:
        if len(part) <= digests.block_bytes:
            return [unreadable_range(start, start + len(part), e)]
    else:
        return bad_blocks(start, [part], digests)
    bad = []
    for at in range(0, len(part), digests.block_bytes):
        block = part[at : at + digests.block_bytes]
        bad += _read_and_check(file, digests, start + at, block)
    return bad


def _blocks_within(
    part: tuple[int, int], whole: tuple[int, int], digests: Digests
) -> tuple[int, int]:
    """Return the range of the blocks that begin in a part of a file."""
    base, block = digests.start, digests.block_bytes
    start, stop = [base + -(-max(0, at - base) // block) * block for at in part]
    return start, min(stop, whole[1])


def _unit_ranges(ranges: Sequence[tuple[int, int]], block: int) -> list[tuple[int, int]]:
    step = max(block, _UNIT_BYTES // block * block)
    return [(at, min(at + step, b)) for a, b in ranges for at in range(a, b, step)]
