"""A checkpoint whose leaves are tiles: what any verb reads as it reads the files of a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from cordwood.sharding.boxes import element_count


def open_tiles(
    name: str,
    format: str,
    tree: TiledTree,
    tile: Callable[[int, int], np.ndarray],
    *,
    naming: Naming,
    metadata: Mapping[str, str],
) -> LeafReader:
    """Return a reader of a tree that is there as tiles.

    Args:
        name: the path, for messages.
        format: the name of the format of the base.
        tree: the tiles.
        tile: returns the bytes of a tile (uint8[size]), by its leaf and its number there.
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
    index = Index(format, tree.structure, tuple(leaves), (source,), naming, metadata)
    return LeafReader(name, Opened(format, index, [file]))


def _leaf(spec: LeafSpec, pieces: list[Piece]) -> Leaf:
    path, kind, shape, dtype, weak_type, prng_impl, value = spec
    storage = Pieces(tuple(pieces)) if kind in ARRAY_KINDS else Inline(value)
    return Leaf(path, kind, shape, dtype, storage, weak_type, prng_impl)
