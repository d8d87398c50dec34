"""What a directory of chunk files is made of, before one of them exists. Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from cordwood.index import Box


class SmallFile(NamedTuple):
    """A file whose bytes the format knows."""

    path: str  # relative to the directory, with '/'
    data: bytes


class ChunkFile(NamedTuple):
    """A file of the elements of a box of a leaf, in C order, little-endian.

    Where the box is smaller than the chunk, zeros stand for what the leaf has not.
    """

    path: str
    leaf: int
    box: Box
    shape: tuple[int, ...]  # of the chunk
    itemsize: int


PlannedFile: TypeAlias = SmallFile | ChunkFile
