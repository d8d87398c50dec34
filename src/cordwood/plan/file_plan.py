"""Plans of the files of a save, before any byte is written. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from cordwood.index import Box, Digests


class LiteralBytes(NamedTuple):
    """Bytes that the plan itself holds."""

    data: bytes


class LeafBytes(NamedTuple):
    """Bytes [start, stop) of a leaf's elements, or of those of a box, in C order, little-endian."""

    leaf: int
    start: int
    stop: int
    box: Box | None = None  # None: all of the leaf


# A leaf, and a box of it or None for all of it.
LeafPart: TypeAlias = tuple[int, Box | None]
Segment: TypeAlias = LiteralBytes | LeafBytes


class FilePlan(NamedTuple):
    """One file: `header_bytes` reserved in front, then the segments one after another.

    `make_header`, if any, is called with the digests of all bytes after the header and returns
    the header, exactly `header_bytes` long. The header is written last. `digests` are those digests
    if they are known before the bytes are read: then an upload does not read them twice.
    """

    size_bytes: int
    segments: tuple[Segment, ...]
    header_bytes: int = 0
    make_header: Callable[[Digests], bytes] | None = None
    digests: Digests | None = None


class SmallFile(NamedTuple):
    """A file of a new directory whose bytes the plan holds."""

    path: str  # relative to the directory, with '/'
    data: bytes


class ChunkFile(NamedTuple):
    """A file of a new directory with the elements of a box of a leaf, in C order, little-endian.

    A box smaller than the chunk, at an edge of the leaf, is padded with zeros.
    """

    path: str
    leaf: int
    box: Box
    shape: tuple[int, ...]  # of the chunk
    itemsize: int


PlannedFile: TypeAlias = SmallFile | ChunkFile


def segment_offsets(plan: FilePlan) -> list[int]:
    """Return the offset of each segment, and the end of the last one, in bytes.

    Raises:
        ValueError: the sizes in the plan disagree with each other.
    """
    lengths = [
        segment.stop - segment.start if isinstance(segment, LeafBytes) else len(segment.data)
        for segment in plan.segments
    ]
    ends = list(accumulate(lengths, initial=plan.header_bytes))
    if ends[-1] != plan.size_bytes or (plan.make_header is None) != (plan.header_bytes == 0):
        raise ValueError(
            f"a plan of {plan.size_bytes} bytes, but a header of {plan.header_bytes} "
            f"({'no' if plan.make_header is None else 'with'} make_header) and its segments end "
            f"at {ends[-1]}"
        )
    return ends


def leaves_of(segments: Iterable[Segment]) -> list[int]:
    """Return the leaf of each segment that holds elements."""
    return [
        segment.leaf
        for segment in segments
        if isinstance(segment, LeafBytes) and segment.stop > segment.start
    ]


def build_header(plan: FilePlan, digests: Digests) -> bytes:
    """Return the header of a file, b"" if it has none.

    Raises:
        ValueError: the header is not `header_bytes` long.
    """
    header = b"" if plan.make_header is None else plan.make_header(digests)
    if len(header) != plan.header_bytes:
        raise ValueError(
            f"make_header returned {len(header)} bytes for a header of {plan.header_bytes}"
        )
    return header
