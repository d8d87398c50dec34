"""Damage in the sources of a checkpoint, and the leaves in the damaged ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from cordwood.encoding.digests import check_coverage
from cordwood.errors import CordwoodError, CorruptionError
from cordwood.index import Digests, Index, Inline, Source
from cordwood.io.check_crc32 import bad_checksums
from cordwood.io.check_files import check_files
from cordwood.io.open_files import ReadableFile, is_disk_error
from cordwood.io.source_digests import SourceDigests
from cordwood.io.unreadable_range import UnreadableRange
from cordwood.io.verify_sample import VerifySample
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines, first_names

_MAX_LINES = 50
_MAX_NAMES = 5


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
    bad = bad_ranges_in(index.sources, files, digests, skip_broken=skip_broken, sample=sample)
    if whole_index is not None and bad.is_damage:
        index = whole_index()
    return name_damage(index, bad)


class BadRanges(NamedTuple):
    """The damage in files, before anybody has looked which leaves it is in.

    Attributes:
        broken: the errors of files whose digests cannot be read, by their positions.
        ranges: the bad ranges of each file.
    """

    broken: Mapping[int, Exception]
    ranges: Sequence[Sequence[tuple[int, int]]]

    @property
    def is_damage(self) -> bool:
        """True if there is any."""
        return bool(self.broken) or any(self.ranges)


def bad_ranges_in(
    sources: Sequence[Source],
    files: Sequence[ReadableFile],
    digests: Sequence[Digests | None],
    *,
    skip_broken: bool = False,
    sample: VerifySample | None = None,
    within: Sequence[tuple[int, int]] | None = None,
) -> BadRanges:
    """Return the ranges of sources that do not match their digests and checksums.

    Args:
        sources: the sources.
        files: the same, open.
        digests: those of each source; they may be fetched from it now.
        skip_broken: a source whose digests cannot be read is damage, and no error.
        sample: chooses the blocks to read. None: all.
        within: of each source, the range in which the blocks begin that are read. None: all.
    """
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
    parts = None if within is None else [within[number] for number, _ in covered]
    checked = check_files([(files[number], each) for number, each in covered], sample, parts)
    for (number, _), ranges in zip(covered, checked, strict=True):
        bad[number] += ranges
    return BadRanges(broken, bad)


def name_damage(index: Index, bad: BadRanges) -> list[Damage]:
    """Return the damage in the sources of an index in words, with the leaves that it is in."""
    damage = []
    for number, source in enumerate(index.sources):
        if number in bad.broken:
            names = _leaves_within(index, number, 0, source.size_bytes)
            damage.append(Damage(f"{source.name} (leaves: {names}): {bad.broken[number]}"))
        for each in bad.ranges[number]:
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
