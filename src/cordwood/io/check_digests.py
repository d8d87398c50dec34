"""Checks of stored bytes against their digests, block by block: during loads, and by verify."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cordwood.encoding.digests import (
    DIGEST_BYTES,
    check_coverage,
    digest_of,
    digest_of_parts,
)
from cordwood.errors import CorruptionError
from cordwood.index import Digests
from cordwood.io.progress import current_meter
from cordwood.io.scratch_buffer import ScratchBuffer
from cordwood.io.threads import reading_threads, run_tasks
from cordwood.io.verify_sample import current_sample
from cordwood.storage.open_files import DISK_ERRORS, ReadableFile

_UNIT_BYTES = 4 << 20


class UnreadableRange(tuple[int, int]):
    """A byte range (start, stop) that the disk cannot read; `why` is its error."""

    why: OSError


def unreadable_range(start: int, stop: int, why: OSError) -> UnreadableRange:
    """Return the range, or raise the error if it is not an error of the disk."""
    if why.errno not in DISK_ERRORS:
        raise why
    unreadable = UnreadableRange((start, stop))
    unreadable.why = why
    return unreadable


def check_files(files: Sequence[tuple[ReadableFile, Digests]]) -> list[list[tuple[int, int]]]:
    """Read files; return for each the byte ranges of the blocks that do not match.

    A block that the disk cannot read (EIO) is among them, as an UnreadableRange.
    Raises CorruptionError if the digests are not for a file of that size.
    """
    sample, meter = current_sample(), current_meter()
    bad: list[list[tuple[int, int]]] = [[] for _ in files]
    remaining = [0] * len(files)  # ranges of each file that are not read yet
    tasks: list[tuple[int, int, int]] = []
    for number, (file, digests) in enumerate(files):
        check_coverage(file.name, file.size_bytes, digests)
        ranges = _unit_ranges([(digests.start, file.size_bytes)], digests.block_bytes)
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


def _unit_ranges(ranges: Sequence[tuple[int, int]], block: int) -> list[tuple[int, int]]:
    step = max(block, _UNIT_BYTES // block * block)
    return [(at, min(at + step, b)) for a, b in ranges for at in range(a, b, step)]


def check_blocks(name: str, start: int, parts: Sequence[memoryview], digests: Digests) -> None:
    """Raise CorruptionError unless `parts`, whole blocks from `start` on, match their digests."""
    bad = bad_blocks(start, parts, digests)
    if bad:
        a, b = bad[0]
        raise CorruptionError(
            f"{name}: bytes {a} to {b} do not match the digest that was saved with them: the "
            "file is damaged; load another copy, or verify() to list every damaged block"
        )


def bad_blocks(start: int, parts: Sequence[memoryview], digests: Digests) -> list[tuple[int, int]]:
    """Return the byte ranges of the blocks in `parts` whose digests differ."""
    if len(parts) == 1:
        return _bad_blocks_of_one(start, parts[0], digests)
    block = digests.block_bytes
    number = (start - digests.start) // block
    bad: list[tuple[int, int]] = []
    pending: list[memoryview] = []
    room, at = block, start

    def close_block() -> None:
        nonlocal number, at
        size = block - room
        digest = digest_of(pending[0]) if len(pending) == 1 else digest_of_parts(pending)
        if digest != digests.values[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
            bad.append((at, at + size))
        number, at = number + 1, at + size

    for part in parts:
        a = 0
        while a < len(part):
            piece = part[a : a + room]
            pending.append(piece)
            a += len(piece)
            room -= len(piece)
            if room == 0:
                close_block()
                pending.clear()
                room = block
    if pending:
        close_block()
    return bad


def _bad_blocks_of_one(start: int, part: memoryview, digests: Digests) -> list[tuple[int, int]]:
    block, values = digests.block_bytes, digests.values
    offset = (start - digests.start) // block * DIGEST_BYTES
    bad: list[tuple[int, int]] = []
    for at in range(0, len(part), block):
        piece = part[at : at + block]
        if digest_of(piece) != values[offset : offset + DIGEST_BYTES]:
            bad.append((start + at, start + at + len(piece)))
        offset += DIGEST_BYTES
    return bad
