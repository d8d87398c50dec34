"""The Index of an item of `cordwood.json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.cordwood_json import decode_index
from cordwood.formats.packs.index_item import FREE_LEAVES, GAP, Item, cell_sizes, parse_item
from cordwood.formats.packs.leaf_grid import Grid, cells_meeting
from cordwood.formats.packs.leaf_types import dtype_of
from cordwood.index import Box, Index, Inline, Leaf, Piece, Pieces, Span
from cordwood.io.pause_python_gc import gc_paused
from cordwood.plan.choose_hard_links import StoredCell
from cordwood.tree.structure import leaf_paths

FORMAT = "packs"

NeededBoxes: TypeAlias = Sequence[Sequence[Box] | None]  # of each leaf the boxes; None: all of it

_Found: TypeAlias = list[list[tuple[int, Piece]]]  # of each leaf: its cells with their pieces


def parse_items(data: bytes, *, name: str) -> dict[str, Item]:
    """Return the items of an index file, by their prefixes.

    Args:
        data: the whole file.
        name: its path, for errors.

    Raises:
        CorruptionError: the file is not what was written.
        FormatError: it is no index of packs, or its members contradict each other.
        UnsupportedFormatError: it is of a newer version.
    """
    try:
        with gc_paused():
            items: dict[str, Item] = {}
            most = FREE_LEAVES + len(data)
            for prefix, item in decode_index(data).items():
                items[prefix] = parse_item(item, max_leaves=most, where=_where(prefix))
                most -= len(items[prefix].leaf_types)
            return items
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{name}: {e}") from e


def _where(prefix: str) -> str:
    try:
        prefix.encode()
    except UnicodeEncodeError as e:
        raise FormatError("items: a prefix holds a lone surrogate") from e
    return f"items[{prefix!r:.80}]"


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


def _pieces(item: Item, flags: np.ndarray[Any, np.dtype[np.bool_]] | None) -> _Found:
    pieces: _Found = [[] for _ in range(len(item.leaf_types))]
    boxes: dict[tuple[int, int], Box | Span] = {}
    bytes_of = [cell_sizes(packed) for packed in item.types]
    kinds_of = [item.leaf_types[column] for column in item.columns]
    counts_of = [
        np.stack(np.unique(kinds, return_counts=True), axis=1).tolist() for kinds in kinds_of
    ]
    starts_of = [item.cell_starts[column] for column in item.columns]
    sizes = np.zeros(len(item.types), np.int64)
    for number, pack in enumerate(item.packs):
        end = pack.source.header_digest.header_bytes if pack.source.header_digest is not None else 0
        for part, cell in pack.parts:
            if part == GAP:
                end += cell
                continue
            start, lengths = end, {kind: bytes_of[kind](cell) for kind, _ in counts_of[part]}
            end += sum([lengths[kind] * count for kind, count in counts_of[part]])
            picked: Any = slice(None)
            if flags is not None:
                picked = np.flatnonzero(flags[starts_of[part] + cell])
                if not len(picked):
                    continue
            for kind, length in lengths.items():
                sizes[kind] = length
            kinds = kinds_of[part]
            stops = start + np.cumsum(sizes[kinds])
            for leaf, kind, stop in zip(
                item.columns[part][picked].tolist(),
                kinds[picked].tolist(),
                stops[picked].tolist(),
                strict=True,
            ):
                where = boxes.get((kind, cell))
                if where is None:
                    where = boxes[kind, cell] = _place(item.types[kind].grid, cell)
                length = lengths[kind]
                pieces[leaf].append((cell, _new(Piece, (where, number, stop - length, length))))
    return pieces


_new = tuple.__new__


def cells_of_file(item: Item, number: int) -> Iterator[StoredCell]:
    """Return the cells in a file of an item, in order; bytes in gaps are left out."""
    pack = item.packs[number]
    bytes_of = [cell_sizes(packed) for packed in item.types]
    end = pack.source.header_digest.header_bytes if pack.source.header_digest is not None else 0
    for part, cell in pack.parts:
        if part == GAP:
            end += cell
            continue
        column = item.columns[part]
        for leaf, kind in zip(column.tolist(), item.leaf_types[column].tolist(), strict=True):
            length = bytes_of[kind](cell)
            yield StoredCell(leaf, cell, end, length)
            end += length


def _place(grid: Grid | None, cell: int) -> Box | Span:
    assert grid is not None
    return Span(0, prod(grid.shape)) if grid.cell_count == 1 else grid.box(cell)


def _leaves(item: Item, pieces: _Found) -> Iterator[Leaf]:
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
