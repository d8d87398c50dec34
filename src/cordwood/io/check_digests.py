"""Checks of stored bytes against their digests and CRC-32 checksums: by loads, and of whole files.

A verification reads all blocks of the files or a sample, and names the leaves in damaged ranges.
One file, because a load and a verification find damage by the same functions.
"""

from __future__ import annotations

import os
import random
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, overload

import numpy as np

from cordwood.encoding.cordwood_metadata import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    MAX_BLOCK_BYTES,
    check_coverage,
    digest_of,
    digest_of_parts,
)
from cordwood.errors import CordwoodError, CorruptionError
from cordwood.index import Checksum, Digests, Index, Inline, Source
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.open_files import ReadableFile, is_disk_error
from cordwood.io.progress import METER
from cordwood.io.threads import default_threads, reading_threads, run_tasks
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines, first_names
from cordwood.plan.load_plan import EncodedChunk, LoadPlan, Move

_UNIT_BYTES = 4 << 20
_MAX_LINES = 50
_MAX_NAMES = 5
_HEAD = b"cordwood verify: found whole\n"  # the first line of a record, by which it is recognized
_CHECKSUM_UNIT_BYTES = 1 << 20


class UnreadableRange(tuple[int, int]):
    """A byte range (start, stop) that the disk cannot read; `why` is its error."""

    why: OSError


def unreadable_range(start: int, stop: int, why: OSError) -> UnreadableRange:
    """Return the range, or raise the error if it is not an error of the disk."""
    if not is_disk_error(why):
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

    def read_ahead(self, numbers: Collection[int], files: Sequence[ReadableFile]) -> None:
        """Read the digests in the headers of sources several at once, where reads are requests.

        A header that is damaged or missing is read again, and its error raised, when its digests
        are needed. Raises OSError where a store refuses.
        """
        unread = [
            number
            for number in sorted(numbers)
            if self._sources[number].digests is None
            and self._sources[number].header_digest is not None
            and number not in self._fetched
            and files[number].latency_bound
        ]

        def read(task: int) -> None:
            try:
                self[unread[task]]
            except CordwoodError as e:
                if isinstance(e, OSError):
                    raise

        if len(unread) > 1:
            threads = reading_threads(latency_bound=True)
            run_tasks(len(unread), threads=threads, make_worker=lambda: read)


def block_bytes(sources: Sequence[Source], *, verify: bool) -> list[int]:
    """Return for each source the size of the blocks that must be read whole; 0 for none.

    Reads nothing: a source with digests in its own header is assumed to have the usual block size.
    """
    if not verify:
        return [0] * len(sources)
    return [
        min(max(0, source.digests.block_bytes), MAX_BLOCK_BYTES)
        if source.digests is not None
        else BLOCK_BYTES * (source.header_digest is not None)
        for source in sources
    ]


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


# Verification of whole files


class VerifySample:
    """The choice of the blocks that a verification reads, and its counts.

    Args:
        share: the fraction of the blocks of each file to read, chosen at random; 1 is all.
        seed: the seed of the random choice.
        record: a file with one line for each source that was verified without errors, so that a
            later call can skip it; None: there is none.

    Raises ValueError if `record` is a file of another kind, which would be lost.
    """

    def __init__(self, share: float, seed: int | None, record: str | None) -> None:
        self._share = share
        self._random = random.Random(seed)  # noqa: S311
        self._record = record
        self._known = _lines(record)
        self.checked_bytes = 0
        self.previously_verified_bytes = 0  # of sources that an earlier call has verified

    def choose(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges of a source that are to be read."""
        if self._share >= 1:
            return list(ranges)
        count = min(len(ranges), max(1, round(len(ranges) * self._share)))
        return [ranges[i] for i in sorted(self._random.sample(range(len(ranges)), count))]

    def was_verified(self, name: str, size_bytes: int, digests: Digests) -> bool:
        """Return True if an earlier call has verified a source without errors."""
        if _mark(name, size_bytes, digests) not in self._known:
            return False
        self.previously_verified_bytes += size_bytes
        return True

    def record_verified(self, name: str, size_bytes: int, digests: Digests) -> None:
        """Add a source without errors to the record."""
        if self._record is None or self._share < 1:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._record, flags, 0o644)
        try:
            head = b"" if os.fstat(fd).st_size else _HEAD
            os.write(fd, head + f"{_mark(name, size_bytes, digests)}\n".encode())
        finally:
            os.close(fd)

    def delete_record(self) -> None:
        """Delete the record once all is verified, so that the next call starts again."""
        if self._record is not None and os.path.exists(self._record):
            os.unlink(self._record)


def _lines(record: str | None) -> frozenset[str]:
    if record is None or not os.path.exists(record):
        return frozenset()
    with open(record, "rb") as file:
        data = file.read(len(_HEAD))
        if data not in (b"", _HEAD):
            raise ValueError(
                f"resume={record!r}: expected a new file, or one that an interrupted verify has "
                "left; this is another file, and was left as it is: name another path"
            )
        data += file.read()
    end = data.rfind(b"\n") + 1
    if end < len(data):  # drop a partial last line, or the next line would be appended to it
        os.truncate(record, end)
    return frozenset(data[len(_HEAD) : end].decode(errors="replace").split("\n")) - {""}


def _mark(name: str, size_bytes: int, digests: Digests) -> str:
    """Return the line of the record for a source: a digest of its name, size and digests."""
    what = f"{name}\0{size_bytes}\0{digests.start}\0".encode(errors="surrogatepass")
    return digest_of(what + digests.values).hex()


def check_files(
    files: Sequence[tuple[ReadableFile, Digests]], sample: VerifySample | None = None
) -> list[list[tuple[int, int]]]:
    """Read files; return for each the byte ranges of the blocks that do not match.

    With a sample, only the blocks that it chooses are read. A block that the disk cannot read
    (EIO) is among the ranges, as an UnreadableRange.
    Raises CorruptionError if the digests are not for a file of that size.
    """
    meter = METER.get()
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


class Damage(NamedTuple):
    """Damage in a file, in words."""

    text: str  # the file, the byte range and the leaves in it
    is_unreadable: bool = False  # the disk does not return the bytes


def check_sources(
    index: Index, files: Sequence[ReadableFile], digests: Sequence[Digests | None]
) -> None:
    """Raise CorruptionError unless every digest and checksum of every source matches."""
    raise_damage(damage_in_sources(index, files, digests))


def raise_damage(damage: Sequence[Damage], *, directory: str | None = None) -> None:
    """Raise CorruptionError with a line for each piece of damage; do nothing where there is none.

    Args:
        damage: the damage.
        directory: the name of the checkpoint, if it consists of several files.
    """
    if not damage:
        return
    if directory is not None:
        what = counted(len(damage), "damaged range or file", "damaged ranges or files")
        head = f"{directory}: {what}"
    else:
        unread = any(each.is_unreadable for each in damage)
        head = (
            f"{counted(len(damage), 'damaged range')} (the stored bytes do not match their digests"
            f"{', or cannot be read' if unread else ''})"
        )
    raise CorruptionError(f"{head}:\n{first_lines([each.text for each in damage], _MAX_LINES)}")


def damage_in_sources(
    index: Index,
    files: Sequence[ReadableFile],
    digests: Sequence[Digests | None],
    *,
    whole_index: Callable[[], Index] | None = None,
    skip_broken: bool = False,
    sample: VerifySample | None = None,
) -> list[Damage]:
    """Return the ranges of the sources that do not match their digests and checksums.

    Args:
        index: the index.
        files: its sources.
        digests: those of each source; they may be fetched from it now.
        whole_index: gives the index with all pieces of leaves, if `index` leaves some out.
        skip_broken: a source whose digests cannot be read is damage, and no error.
        sample: chooses the blocks to read. None: all.
    """
    sources = index.sources
    broken: dict[int, Exception] = {}
    covered: list[tuple[int, Digests]] = []
    if isinstance(digests, SourceDigests):
        digests.read_ahead(range(len(files)), files)
    for number, file in enumerate(files):
        try:
            covering = digests[number]
            if covering is not None:
                if skip_broken:
                    check_coverage(file.name, file.size_bytes, covering)
                covered.append((number, covering))
        except (CordwoodError, OSError) as e:
            if not skip_broken or (isinstance(e, OSError) and not is_disk_error(e)):
                raise
            broken[number] = e
    bad = [bad_checksums(f, source.checksums) for source, f in zip(sources, files, strict=True)]
    checked = check_files([(files[number], each) for number, each in covered], sample)
    for (number, _), ranges in zip(covered, checked, strict=True):
        bad[number] += ranges
    if whole_index is not None and (broken or any(bad)):
        index = whole_index()
    damage = []
    for number, source in enumerate(sources):
        if number in broken:
            names = _leaves_within(index, number, 0, source.size_bytes)
            damage.append(Damage(f"{source.name} (leaves: {names}): {broken[number]}"))
        for each in bad[number]:
            names = _leaves_within(index, number, *each)
            text = f"{_range_text(each, source.name)}: {names}"
            damage.append(Damage(text, isinstance(each, UnreadableRange)))
    return damage


def _range_text(damage: tuple[int, int], name: str) -> str:
    """Return a byte range of a file in words, and why it could not be read, if that is so."""
    start, stop = damage
    why = f" (cannot be read: {damage.why.strerror})" if isinstance(damage, UnreadableRange) else ""
    return f"bytes {start} to {stop} of {name}{why}"


def _leaves_within(index: Index, source: int, start: int, stop: int) -> str:
    """Return the names of the leaves with bytes in a range of a source, for people."""
    places = sorted(
        (piece.offset, piece.offset + piece.length, path_label(leaf.key_path))
        for leaf in index.leaves
        if not isinstance(leaf.storage, Inline)
        for piece in leaf.storage.pieces
        if piece.source == source and piece.length
    )
    first = max(0, bisect_right(places, (start,)) - 1)
    within = takewhile(lambda place: place[0] < stop, places[first:])
    names = list(dict.fromkeys(name for _, high, name in within if high > start))
    return first_names(names, _MAX_NAMES) or "padding"
