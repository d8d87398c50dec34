"""CRC-32 checksums of parts of files: of what a load has read, or of the files themselves."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cordwood.errors import CorruptionError
from cordwood.index import Checksum, Source
from cordwood.io.check_digests import UnreadableRange, unreadable_range
from cordwood.io.threads import default_threads, run_tasks
from cordwood.plan.load_plan import LoadPlan, Move
from cordwood.plan.scatter import EncodedChunk
from cordwood.storage.open_files import ReadableFile

_UNIT_BYTES = 1 << 20


def check_loaded(
    plan: LoadPlan,
    buffers: Sequence[np.ndarray],
    sources: Sequence[Source],
    files: Sequence[ReadableFile],
) -> None:
    """Check what has been read of ranges with a checksum, those that were read whole.

    What was decoded on its way to a buffer (arrays in Fortran order) is read once more. Ranges
    that are compressed are checked where they are decoded.

    Raises CorruptionError naming the file and the range.
    """
    for number, source in enumerate(sources):
        if not source.checksums:
            continue
        moves = [move for move in plan.moves if move.source == number and move.buffer >= 0]
        starts = [move.offset for move in moves]
        decoded = [chunk for chunk in plan.chunks if chunk.source == number]
        todo, again = [], []
        for checksum in source.checksums:
            parts = _parts(checksum, moves, starts, buffers)
            if parts is not None:
                todo.append((checksum, parts))
            elif decoded and checksum.inflated_bytes is None and _covers(decoded, checksum):
                again.append(checksum)
        _check(todo, source.name)
        for damage in bad_checksums(files[number], again)[:1]:
            if isinstance(damage, UnreadableRange):
                raise damage.why
            raise _damaged(source.name, *damage)


def _covers(decoded: Sequence[EncodedChunk], checksum: Checksum) -> bool:
    """Whether all of a range behind its head is in chunks, of which none overlap."""
    start, stop = checksum.start + checksum.head_bytes, checksum.stop
    within = [c.length for c in decoded if start <= c.offset and c.offset + c.length <= stop]
    return start < stop and sum(within) == stop - start


def _damaged(name: str, start: int, stop: int) -> CorruptionError:
    return CorruptionError(
        f"{name}: bytes {start} to {stop} do not match their CRC-32: the file is damaged; load "
        "another copy, or verify() to list every damaged part"
    )


def _parts(
    checksum: Checksum, moves: Sequence[Move], starts: Sequence[int], buffers: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """A range behind its head, as it lies in the buffers; None if not all of it was read."""
    if checksum.inflated_bytes is not None:
        return None
    at = checksum.start + checksum.head_bytes
    i = bisect_right(starts, at) - 1
    parts = []
    while at < checksum.stop:
        if not 0 <= i < len(moves) or not 0 <= at - moves[i].offset < moves[i].length:
            return None
        _, offset, length, buffer, position = moves[i]
        end = min(checksum.stop, offset + length)
        parts.append(buffers[buffer][position + at - offset : position + end - offset])
        at = end
        i += 1
    return parts


def _check(todo: Sequence[tuple[Checksum, Sequence[np.ndarray]]], name: str) -> None:
    def work(task: int) -> None:
        checksum, parts = todo[task]
        found = checksum.head_crc32
        for part in parts:
            found = zlib.crc32(part.data, found)
        if found != checksum.crc32:
            raise _damaged(name, checksum.start, checksum.stop)

    size = sum(part.size for _, parts in todo for part in parts)
    threads = default_threads() if size > _UNIT_BYTES else 1
    run_tasks(len(todo), threads=threads, make_worker=lambda: work)


def bad_checksums(file: ReadableFile, checksums: Sequence[Checksum]) -> list[tuple[int, int]]:
    """Read the ranges; return those that do not match, or cannot be read (`UnreadableRange`)."""
    bad: list[tuple[int, int]] = []

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            checksum = checksums[task]
            try:
                if not _matches(file, checksum):
                    bad.append((checksum.start, checksum.stop))
            except OSError as e:
                bad.append(unreadable_range(checksum.start, checksum.stop, e))

        return work

    run_tasks(len(checksums), threads=default_threads(), make_worker=make_worker)
    return sorted(bad)


def _matches(file: ReadableFile, checksum: Checksum) -> bool:
    found = 0
    if checksum.inflated_bytes is None:
        for data in _units(file, checksum):
            found = zlib.crc32(data, found)
        return found == checksum.crc32
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    try:
        for data in _units(file, checksum):
            while data and not decoder.eof:
                part = decoder.decompress(data, _UNIT_BYTES)
                data = decoder.unconsumed_tail
                found, size = zlib.crc32(part, found), size + len(part)
                if size > checksum.inflated_bytes:
                    return False
        part = decoder.flush()
    except zlib.error:
        return False
    found, size = zlib.crc32(part, found), size + len(part)
    return decoder.eof and size == checksum.inflated_bytes and found == checksum.crc32


def _units(file: ReadableFile, checksum: Checksum) -> Iterator[bytes]:
    for start in range(checksum.start, checksum.stop, _UNIT_BYTES):
        yield file.read(start, min(_UNIT_BYTES, checksum.stop - start))
