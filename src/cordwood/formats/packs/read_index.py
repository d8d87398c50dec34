"""The index of an item: its leaves, with the pieces of files that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from cordwood.formats.packs.grid import Grid, cells_meeting
from cordwood.formats.packs.item import GAP, Item, ItemLayout
from cordwood.formats.packs.leaf_types import dtype_of
from cordwood.index import Box, Index, Inline, Leaf, Piece, Pieces, Span, leaf_paths
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "packs"

NeededBoxes: TypeAlias = Sequence[Sequence[Box] | None]  # of each leaf the boxes; None: all of it
_CellPieces: TypeAlias = list[list[tuple[int, Piece]]]  # of each leaf: its cells with their pieces
_new = tuple.__new__


def read_index(item: Item, *, boxes: NeededBoxes | None = None) -> Index:
    """Return the index of an item.

    A leaf that was not cut is one span; otherwise each cell is a box.

    Args:
        item: a member of what `parse_items` returns.
        boxes: the boxes of each leaf that are needed; the index then has only the pieces that
            have elements of them, for a leaf may have millions. None: all of every leaf.
    """
    with gc_paused():
        flags = None if boxes is None else _flags(item, boxes)
        pieces = _pieces(item, flags)
        return Index(
            FORMAT,
            item.structure,
            tuple(_leaves(item, pieces)),
            tuple([pack.source for pack in item.packs]),
            "exact",
            item.metadata,
        )


def _flags(item: Item, boxes: NeededBoxes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a flag for each cell of all leaves: True if it is needed."""
    grids = [packed.grid for packed in item.types]
    kinds = item.leaf_types.tolist()
    flags = np.zeros(item.cell_count, np.bool_)
    for start, kind, needed in zip(item.cell_starts.tolist(), kinds, boxes, strict=True):
        grid = grids[kind]
        if grid is None:
            continue
        if needed is None:
            flags[start : start + grid.cell_count] = True
            continue
        for box in needed:
            for cell in cells_meeting(grid, box):
                flags[start + cell] = True
    return flags


def _pieces(item: Item, flags: np.ndarray[Any, np.dtype[np.bool_]] | None) -> _CellPieces:
    pieces: _CellPieces = [[] for _ in range(len(item.leaf_types))]
    boxes: dict[tuple[int, int], Box | Span] = {}
    layout = ItemLayout(item)
    kinds_of = [item.leaf_types[column] for column in item.columns]
    starts_of = [item.cell_starts[column] for column in item.columns]
    sizes = np.zeros(len(item.types), np.int64)
    for number, pack in enumerate(item.packs):
        for column, cell, start, _, cell_bytes in layout.parts_of(pack):
            if column == GAP:
                continue
            picked: Any = slice(None)
            if flags is not None:
                picked = np.flatnonzero(flags[starts_of[column] + cell])
                if not len(picked):
                    continue
            for kind, length in cell_bytes.items():
                sizes[kind] = length
            kinds = kinds_of[column]
            stops = start + np.cumsum(sizes[kinds])
            for leaf, kind, stop in zip(
                item.columns[column][picked].tolist(),
                kinds[picked].tolist(),
                stops[picked].tolist(),
                strict=True,
            ):
                where = boxes.get((kind, cell))
                if where is None:
                    where = boxes[kind, cell] = _place(item.types[kind].grid, cell)
                length = cell_bytes[kind]
                pieces[leaf].append((cell, _new(Piece, (where, number, stop - length, length))))
    return pieces


def _place(grid: Grid | None, cell: int) -> Box | Span:
    assert grid is not None
    return Span(0, prod(grid.shape)) if grid.cell_count == 1 else grid.box(cell)


def _leaves(item: Item, pieces: _CellPieces) -> Iterator[Leaf]:
    values = iter(item.values)
    paths = leaf_paths(item.structure)
    for path, kind, cells in zip(paths, item.leaf_types.tolist(), pieces, strict=True):
        leaf_type, _, grid = item.types[kind]
        if grid is None:
            yield Leaf(path, leaf_type.kind, (), "", Inline(next(values)))
            continue
        if len(cells) > 1:
            cells.sort()
        yield Leaf(
            path,
            leaf_type.kind,
            grid.shape,
            dtype_of(leaf_type),
            Pieces(tuple([piece for _, piece in cells])),
            leaf_type.weak_type,
            leaf_type.prng_impl,
        )
