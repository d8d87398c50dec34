"""Verification of whole files: all their blocks or a sample, and the leaves in damaged ranges."""

from __future__ import annotations

import os
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cordwood.encoding.digests import check_coverage, digest_of
from cordwood.errors import CordwoodError, CorruptionError
from cordwood.index import Digests, Index, Inline
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.check_digests import (
    UnreadableRange,
    bad_blocks,
    bad_checksums,
    unreadable_range,
)
from cordwood.io.open_files import DISK_ERRORS, ReadableFile
from cordwood.io.progress import METER
from cordwood.io.threads import reading_threads, run_tasks
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines, first_names

_UNIT_BYTES = 4 << 20
_MAX_LINES = 50
_MAX_NAMES = 5
_HEAD = b"cordwood verify: found whole\n"  # the first line of a record, by which it is recognized


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
    for number, file in enumerate(files):
        try:
            covering = digests[number]
            if covering is not None:
                if skip_broken:
                    check_coverage(file.name, file.size_bytes, covering)
                covered.append((number, covering))
        except (CordwoodError, OSError) as e:
            if not skip_broken or (not isinstance(e, CordwoodError) and e.errno not in DISK_ERRORS):
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
    by_name: dict[str, None] = {}
    for low, high, name in places[first:]:
        if low >= stop:
            break
        if high > start:
            by_name[name] = None
    names = list(by_name)
    return first_names(names, _MAX_NAMES) or "padding"
