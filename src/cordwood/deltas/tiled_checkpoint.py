"""A checkpoint whose leaves are tiles: what any verb reads as it reads the files of a format."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cordwood import dtypes
from cordwood.deltas.tile_grid import TiledTree
from cordwood.deltas.tiled_file import TiledFile
from cordwood.formats.format_protocol import Opened
from cordwood.index import (
    ARRAY_KINDS,
    Index,
    Inline,
    Leaf,
    LeafSpec,
    Naming,
    Piece,
    Pieces,
    Source,
    Span,
)
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.load_plan import LoadPlan
from cordwood.sharding.boxes import element_count


def open_tiles(
    name: str,
    format: str,
    tree: TiledTree,
    tile: Callable[[int, int], np.ndarray],
    *,
    prepare: Callable[[Sequence[tuple[int, int]]], None] | None = None,
    naming: Naming,
    metadata: Mapping[str, str],
) -> LeafReader:
    """Return a reader of a tree that is there as tiles.

    Args:
        name: the path, for messages.
        format: the name of the format of the base.
        tree: the tiles.
        tile: returns the bytes of a tile (uint8[size]), by its leaf and its number there.
        prepare: called with the tiles of each read before they are read.
        naming: that of the base.
        metadata: the user's strings.
    """
    ends: list[int] = []
    keys: list[tuple[int, int]] = []  # of the tiles that have bytes
    leaves: list[Leaf] = []
    for number, spec in enumerate(tree.specs):
        pieces: list[Piece] = []
        for each, box in enumerate(tree.boxes(number)):
            size = element_count(box) * dtypes.itemsize(spec.dtype)
            start = ends[-1] if ends else 0
            is_whole = tree.leaves[number].tiles == 1
            where = Span(0, element_count(box)) if is_whole else box
            pieces.append(Piece(where, 0, start, size))
            if size:
                ends.append(start + size)
                keys.append((number, each))
        leaves.append(_leaf(spec, pieces))
    file = TiledFile(name, ends, lambda number: tile(*keys[number]))
    source = Source(name, file.size_bytes)

    def prepare_plan(plan: LoadPlan) -> None:
        assert prepare is not None
        prepare([keys[number] for number in _tiles_read(plan, ends)])

    index = Index(format, tree.structure, tuple(leaves), (source,), naming, metadata)
    opened = Opened(format, index, [file], prepare=None if prepare is None else prepare_plan)
    return LeafReader(name, opened)


def _tiles_read(plan: LoadPlan, ends: Sequence[int]) -> list[int]:
    """Return the numbers of the tiles that a plan reads, ascending."""
    numbers: set[int] = set()
    for move in plan.moves:
        stop = move.offset + move.length
        numbers.update(range(bisect_right(ends, move.offset), bisect_left(ends, stop) + 1))
    return sorted(numbers)


def _leaf(spec: LeafSpec, pieces: list[Piece]) -> Leaf:
    path, kind, shape, dtype, weak_type, prng_impl, value = spec
    storage = Pieces(tuple(pieces)) if kind in ARRAY_KINDS else Inline(value)
    return Leaf(path, kind, shape, dtype, storage, weak_type, prng_impl)
