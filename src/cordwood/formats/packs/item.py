"""An item of a directory of packs: a tree, and which files hold which cells of its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cordwood.formats.packs.grid import cell_sizes
from cordwood.formats.packs.leaf_types import PackedType
from cordwood.index import Source, Structure
from cordwood.plan.links import StoredCell

GAP = -1  # in place of a column: bytes that no leaf of the item uses, the second number of them

LeafNumbers = np.ndarray[Any, np.dtype[np.int64]]


class PackParts(NamedTuple):
    """A file: from the end of its header on, one cell of each leaf of a column, part by part."""

    source: Source
    parts: tuple[tuple[int, int], ...]  # column, cell; or GAP, bytes

    @property
    def header_bytes(self) -> int:
        """The size of the header; the cells begin behind it."""
        assert self.source.header_digest is not None
        return self.source.header_digest.header_bytes

    @property
    def has_gaps(self) -> bool:
        """True if some bytes of the file belong to no leaf."""
        return any(column == GAP for column, _ in self.parts)


class Item(NamedTuple):
    """The members, checked against one another: every cell of every leaf lies in one place."""

    save_id: str
    metadata: Mapping[str, str]
    structure: Structure
    types: tuple[PackedType, ...]
    leaf_types: LeafNumbers  # of each leaf: position in `types`
    values: list[Any]  # decoded
    columns: tuple[LeafNumbers, ...]  # leaves, ascending
    packs: tuple[PackParts, ...]
    cell_starts: LeafNumbers  # of each leaf: how many cells the leaves before it have
    cell_count: int  # of all leaves


class _Part(NamedTuple):
    """A part of a file: the same cell of each leaf of a column, or a gap."""

    column: int  # or GAP
    cell: int
    start: int  # in bytes, from the start of the file
    stop: int
    cell_bytes: Mapping[int, int]  # of one leaf, by its type


class ItemLayout:
    """The sizes of the cells of an item, from which follows where they lie in its files."""

    def __init__(self, item: Item) -> None:
        self._sizes = [cell_sizes(packed.grid, packed.itemsize) for packed in item.types]
        kinds_of = [item.leaf_types[column] for column in item.columns]
        self._counts = [
            np.stack(np.unique(kinds, return_counts=True), axis=1).tolist() for kinds in kinds_of
        ]

    def parts_of(self, pack: PackParts) -> Iterator[_Part]:
        """Yield the parts of a file, in order."""
        stop = pack.header_bytes
        for column, cell in pack.parts:
            start = stop
            if column == GAP:
                stop += cell  # the size of the gap
                yield _Part(GAP, 0, start, stop, {})
                continue
            counts = self._counts[column]
            cell_bytes = {kind: self._sizes[kind](cell) for kind, _ in counts}
            stop += sum([cell_bytes[kind] * count for kind, count in counts])
            yield _Part(column, cell, start, stop, cell_bytes)


def cells_of_file(item: Item, number: int) -> Iterator[StoredCell]:
    """Yield the cells in a file of an item, in order; a gap is a cell of no leaf."""
    for part, cell, offset, stop, cell_bytes in ItemLayout(item).parts_of(item.packs[number]):
        if part == GAP:
            yield StoredCell(None, 0, offset, stop - offset)
            continue
        column = item.columns[part]
        for leaf, kind in zip(column.tolist(), item.leaf_types[column].tolist(), strict=True):
            yield StoredCell(leaf, cell, offset, cell_bytes[kind])
            offset += cell_bytes[kind]
