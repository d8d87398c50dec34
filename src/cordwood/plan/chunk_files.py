"""Files of a directory of chunks, as planned before any of them is written. Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from cordwood.index import Box


class SmallFile(NamedTuple):
    """A file whose bytes the plan holds."""

    path: str  # relative to the directory, with '/'
    data: bytes


class ChunkFile(NamedTuple):
    """A file with the elements of a box of a leaf, in C order, little-endian.

    A box smaller than the chunk, at an edge of the leaf, is padded with zeros.
    """

    path: str
    leaf: int
    box: Box
    shape: tuple[int, ...]  # of the chunk
    itemsize: int


PlannedFile: TypeAlias = SmallFile | ChunkFile
