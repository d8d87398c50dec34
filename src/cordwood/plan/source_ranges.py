"""Ranges of data files, in groups that are worth a task each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.index import Source

TASK_BYTES = 256 << 20  # a multiple of every size of a block that is a power of two


class SourceRange(NamedTuple):
    """The blocks of a data file that begin in a range of bytes; a first range has the header."""

    source: Source
    start: int
    stop: int


def group_ranges(
    sources: Iterable[Source], *, limit_bytes: int = TASK_BYTES
) -> Iterator[tuple[SourceRange, ...]]:
    """Yield groups of ranges that cover all sources, each of at most `limit_bytes`."""
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
