"""Data files, and ranges of them, in groups that are worth a task each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cordwood.index import Source


class SourceRange(NamedTuple):
    """The blocks of a data file that begin in a range of bytes; a first range has the header."""

    source: Source
    start: int
    stop: int


def group_ranges(
    sources: Iterable[Source], *, limit_bytes: int
) -> Iterator[tuple[SourceRange, ...]]:
    """Yield groups of ranges that cover all sources, each of at most so many bytes.

    Blocks are not cut if the limit is a multiple of their size.
    """
    group: list[SourceRange] = []
    room = limit_bytes
    for source in sources:
        head = 0 if source.header_digest is None else source.header_digest.header_bytes
        start = 0
        while True:
            # Cut where blocks begin: at a multiple of the limit after the header.
            stop = min(source.size_bytes, (start or head) + limit_bytes)
            if group and stop - start > room:
                yield tuple(group)
                group, room = [], limit_bytes
            group.append(SourceRange(source, start, stop))
            room -= stop - start
            start = stop
            if start >= source.size_bytes:
                break
    if group:
        yield tuple(group)


def group_files(
    files: Mapping[str, Source], *, limit_bytes: int
) -> Iterator[tuple[tuple[str, Source], ...]]:
    """Yield files in groups of at most so many bytes; a larger file is a group of its own."""
    group: list[tuple[str, Source]] = []
    size = 0
    for name, file in files.items():
        if group and size + file.size_bytes > limit_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append((name, file))
        size += file.size_bytes
    if group:
        yield tuple(group)
