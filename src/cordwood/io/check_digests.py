"""Checks of stored bytes against their digests and CRC-32 checksums, as loads make them."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from cordwood.encoding.digests import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    MAX_BLOCK_BYTES,
    digest_of,
    digest_of_parts,
)
from cordwood.errors import CorruptionError
from cordwood.index import Checksum, Digests, Source
from cordwood.io.open_files import DISK_ERRORS, ReadableFile
from cordwood.io.threads import default_threads, run_tasks
from cordwood.plan.load_plan import EncodedChunk, LoadPlan, Move


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


class SourceDigests(Sequence[Digests | None]):
    """The digests of each source, or None; digests in a source's own header are read on demand."""

    def __init__(
        self, sources: Sequence[Source], fetch: Callable[[int], Digests] | None = None
    ) -> None:
        self._sources = sources
        self._fetch = fetch
        self._fetched: dict[int, Digests] = {}

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, number: int) -> Digests | None: ...

    @overload
    def __getitem__(self, number: slice) -> list[Digests | None]: ...

    def __getitem__(self, number: int | slice) -> Digests | list[Digests | None] | None:
        if isinstance(number, slice):
            return [self[i] for i in range(len(self))[number]]
        source = self._sources[number]
        if source.digests is not None or source.header_digest is None:
            return source.digests
        if number not in self._fetched:
            if self._fetch is None:
                raise ValueError(f"{source.name}: its digests are in itself: pass what reads them")
            self._fetched[number] = self._fetch(number)
        return self._fetched[number]


def block_bytes(sources: Sequence[Source], *, verify: bool) -> list[int]:
    """Return for each source the size of the blocks that must be read whole; 0 for none.

    Reads nothing: a source with digests in its own header is assumed to have the usual block size.
    """
    sizes = []
    for source in sources:
        size = 0
        if verify and source.digests is not None:
            size = min(max(0, source.digests.block_bytes), MAX_BLOCK_BYTES)
        elif verify and source.header_digest is not None:
            size = BLOCK_BYTES
        sizes.append(size)
    return sizes


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
        moves = [move for move in plan.moves if move.source == number and move.buffer >= 0]
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
