"""Save plans: what a file is made of, before a byte of it exists. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cordwood.index import Digests

__all__ = ["FilePlan", "LeafBytes", "Literal", "Segment"]


class Literal(NamedTuple):
    """Bytes that the format knows."""

    data: bytes


class LeafBytes(NamedTuple):
    """Bytes [start, stop) of a leaf's elements, in C order and little-endian."""

    leaf: int
    start: int
    stop: int


Segment: TypeAlias = Literal | LeafBytes


class FilePlan(NamedTuple):
    """One file: `header_bytes` reserved in front, then the segments one after another.

    Where `seal` is given, it is called with the digests of all bytes after the header and
    returns the header, exactly `header_bytes` long; it is written last.
    """

    size_bytes: int
    segments: tuple[Segment, ...]
    header_bytes: int = 0
    seal: Callable[[Digests], bytes] | None = None
