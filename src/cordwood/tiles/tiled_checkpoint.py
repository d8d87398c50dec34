"""A checkpoint whose leaves are tiles: what any verb reads as it reads the files of a format."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.formats.format_protocol import Opened
from cordwood.index import (
    ARRAY_KINDS,
    Box,
    Index,
    Inline,
    Leaf,
    LeafSpec,
    Naming,
    Piece,
    Pieces,
    Source,
    Span,
    Structure,
)
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.load_plan import LoadPlan
from cordwood.sharding.boxes import element_count, shape_of
from cordwood.storage.locations import Location
from cordwood.tiles.tiled_file import TiledFile

Tile: TypeAlias = Sequence[tuple[int, Box]]  # leaves by number, and the box of each


def open_tiles(
    name: str,
    format: str,
    structure: Structure,
    specs: Sequence[LeafSpec],
    tiles: Sequence[Tile],
    make: Callable[[int], np.ndarray],
    *,
    prepare: Callable[[Sequence[int]], None] | None = None,
    inputs: Sequence[Opened] = (),
    naming: Naming,
    metadata: Mapping[str, str],
    location: Location | None = None,
) -> LeafReader:
    """Return a reader of a tree that is there as tiles.

    Args:
        name: the path, for messages.
        format: the name of the format that it is said to have.
        structure: the structure of the tree.
        specs: the types of its leaves, and the values of those that are no arrays.
        tiles: boxes that make up the arrays; each tile has boxes of one or more of them.
        make: returns the bytes of a tile (uint8[size]), those of its boxes one after another.
        prepare: called with the tiles of each read before they are read.
        inputs: checkpoints that are closed with the reader.
        naming: that of the tree.
        metadata: the user's strings.
        location: the checkpoint whose files beside the weights belong to the tree.
    """
    ends: list[int] = []
    pieces: list[list[Piece]] = [[] for _ in specs]
    end = 0
    for tile in tiles:
        for number, box in tile:
            spec = specs[number]
            size = element_count(box) * dtypes.itemsize(spec.dtype)
            is_whole = shape_of(box) == spec.shape
            where = Span(0, element_count(box)) if is_whole else box
            pieces[number].append(Piece(where, 0, end, size))
            end += size
        ends.append(end)
    leaves = tuple([_leaf(spec, some) for spec, some in zip(specs, pieces, strict=True)])
    file = TiledFile(name, ends, make, inputs)
    source = Source(name, file.size_bytes)

    def prepare_plan(plan: LoadPlan) -> None:
        assert prepare is not None
        prepare(_tiles_read(plan, ends))

    index = Index(format, structure, leaves, (source,), naming, metadata)
    opened = Opened(format, index, [file], prepare=None if prepare is None else prepare_plan)
    return LeafReader(name, opened, location)


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
