"""Checks of bytes against their CRC-32: after a load, and of whole files."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from cordwood.errors import CorruptionError
from cordwood.index import Checksum, Source
from cordwood.io.open_files import ReadableFile
from cordwood.io.unreadable_range import UnreadableRange, unreadable_range
from cordwood.plan.load_plan import EncodedChunk, LoadPlan, Move
from cordwood.threads.thread_counts import default_threads
from cordwood.threads.thread_pool import run_tasks

_CHECKSUM_UNIT_BYTES = 1 << 20


def check_loaded(
    plan: LoadPlan,
    buffers: Sequence[np.ndarray],
    sources: Sequence[Source],
    files: Sequence[ReadableFile],
) -> None:
    """Check the ranges with a checksum that a load has read completely.

    Ranges that were transposed while they were read (arrays in Fortran order) are read once more.
    Compressed ranges are checked where they are decoded.

    Raises CorruptionError that names the file and the range.
    """
    for number, source in enumerate(sources):
        if not source.checksums:
            continue
        moves = [
            move for move in plan.moves if move.source == number and isinstance(move.target, int)
        ]
        starts = [move.offset for move in moves]
        decoded = [chunk for chunk in plan.chunks if chunk.source == number]
        todo, again = [], []
        for checksum in source.checksums:
            parts = _read_parts(checksum, moves, starts, buffers)
            if parts is not None:
                todo.append((checksum, parts))
            elif decoded and checksum.inflated_bytes is None and _covers(decoded, checksum):
                again.append(checksum)
        _check_parts(todo, source.name)
        for damage in bad_checksums(files[number], again)[:1]:
            if isinstance(damage, UnreadableRange):
                raise damage.why
            raise _damaged(source.name, *damage)


def _covers(decoded: Sequence[EncodedChunk], checksum: Checksum) -> bool:
    """Return True if chunks without overlaps cover a range after its head."""
    start, stop = checksum.start + checksum.head_bytes, checksum.stop
    within = [c.length for c in decoded if start <= c.offset and c.offset + c.length <= stop]
    return start < stop and sum(within) == stop - start


def _damaged(name: str, start: int, stop: int) -> CorruptionError:
    return CorruptionError(
        f"{name}: bytes {start} to {stop} do not match their CRC-32: the file is damaged; load "
        "another copy, or verify() to list every damaged part"
    )


def _read_parts(
    checksum: Checksum, moves: Sequence[Move], starts: Sequence[int], buffers: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Return the buffer parts that hold a range after its head; None if not all was read."""
    if checksum.inflated_bytes is not None:
        return None
    at = checksum.start + checksum.head_bytes
    i = bisect_right(starts, at) - 1
    parts = []
    while at < checksum.stop:
        if not 0 <= i < len(moves) or not 0 <= at - moves[i].offset < moves[i].length:
            return None
        _, offset, length, buffer, position = moves[i]
        assert isinstance(buffer, int)
        end = min(checksum.stop, offset + length)
        parts.append(buffers[buffer][position + at - offset : position + end - offset])
        at = end
        i += 1
    return parts


def _check_parts(todo: Sequence[tuple[Checksum, Sequence[np.ndarray]]], name: str) -> None:
    def work(task: int) -> None:
        checksum, parts = todo[task]
        crc = checksum.head_crc32
        for part in parts:
            crc = zlib.crc32(part.data, crc)
        if crc != checksum.crc32:
            raise _damaged(name, checksum.start, checksum.stop)

    size = sum(part.size for _, parts in todo for part in parts)
    threads = default_threads() if size > _CHECKSUM_UNIT_BYTES else 1
    run_tasks(len(todo), threads=threads, make_worker=lambda: work)


def bad_checksums(file: ReadableFile, checksums: Sequence[Checksum]) -> list[tuple[int, int]]:
    """Read the ranges; return those that do not match, or cannot be read (`UnreadableRange`)."""
    bad: list[tuple[int, int]] = []

    def work(task: int) -> None:
        checksum = checksums[task]
        try:
            if not _matches(file, checksum):
                bad.append((checksum.start, checksum.stop))
        except OSError as e:
            bad.append(unreadable_range(checksum.start, checksum.stop, e))

    run_tasks(len(checksums), threads=default_threads(), make_worker=lambda: work)
    return sorted(bad)


def _matches(file: ReadableFile, checksum: Checksum) -> bool:
    crc = 0
    if checksum.inflated_bytes is None:
        for data in _units(file, checksum):
            crc = zlib.crc32(data, crc)
        return crc == checksum.crc32
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    try:
        for data in _units(file, checksum):
            while data and not decoder.eof:
                part = decoder.decompress(data, _CHECKSUM_UNIT_BYTES)
                data = decoder.unconsumed_tail
                crc, size = zlib.crc32(part, crc), size + len(part)
                if size > checksum.inflated_bytes:
                    return False
        part = decoder.flush()
    except zlib.error:
        return False
    crc, size = zlib.crc32(part, crc), size + len(part)
    return decoder.eof and size == checksum.inflated_bytes and crc == checksum.crc32


def _units(file: ReadableFile, checksum: Checksum) -> Iterator[bytes]:
    for start in range(checksum.start, checksum.stop, _CHECKSUM_UNIT_BYTES):
        yield file.read(start, min(_CHECKSUM_UNIT_BYTES, checksum.stop - start))
