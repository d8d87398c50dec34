"""The tiles of a tree: boxes of its arrays of a few MiB, which a delta changes one by one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.index import ARRAY_KINDS, Box, LeafSpec, Structure
from cordwood.keypath import path_label
from cordwood.sharding.boxes import Cuts, cell_box

TILE_BYTES = 4 << 20  # larger arrays, or cells of them, are cut
MAX_TILES = 1 << 20  # 4 TiB in large arrays; a tile needs some 300 bytes of memory


class TiledLeaf(NamedTuple):
    """The tiles of one leaf, which follow one another in C order."""

    first: int  # the number of its first tile among those of the tree
    tiles: int  # their number; 0 for a leaf that is no array
    cuts: Cuts


class TiledTree(NamedTuple):
    """The structure and types of a tree, and the tiles of its arrays."""

    structure: Structure
    specs: tuple[LeafSpec, ...]
    leaves: tuple[TiledLeaf, ...]
    outer_cuts: Mapping[int, Cuts]  # of leaves: those of the shards of the writer

    @property
    def tile_count(self) -> int:
        """The number of tiles of all leaves."""
        return sum([leaf.tiles for leaf in self.leaves])

    def box(self, leaf: int, tile: int) -> Box:
        """Return the box of a tile; `tile` counts from the first of the leaf."""
        return cell_box(self.specs[leaf].shape, self.leaves[leaf].cuts, tile)

    def boxes(self, leaf: int) -> list[Box]:
        """Return the boxes of the tiles of a leaf."""
        return [self.box(leaf, tile) for tile in range(self.leaves[leaf].tiles)]

    def keys(self) -> list[tuple[int, int]]:
        """Return, for each tile of the tree, its leaf and its number there."""
        return [
            (number, tile) for number, leaf in enumerate(self.leaves) for tile in range(leaf.tiles)
        ]

    def arrays(self) -> list[int]:
        """Return the numbers of the leaves that are arrays."""
        return [number for number, leaf in enumerate(self.leaves) if leaf.tiles]


def tile_tree(
    structure: Structure, specs: Sequence[LeafSpec], outer_cuts: Mapping[int, Cuts]
) -> TiledTree:
    """Return the tiles of a tree.

    Args:
        structure: its structure.
        specs: the types of its leaves.
        outer_cuts: cuts of leaves, by number, that no tile crosses.

    Raises:
        FormatError: the cuts do not fit a leaf.
        LimitError: there are more than MAX_TILES tiles.
    """
    leaves: list[TiledLeaf] = []
    first = 0
    for number, spec in enumerate(specs):
        if spec.kind not in ARRAY_KINDS:
            if number in outer_cuts:
                raise FormatError(f"{path_label(spec.key_path)} is no array, and has cuts")
            leaves.append(TiledLeaf(first, 0, ()))
            continue
        cuts = outer_cuts.get(number, ((0,),) * len(spec.shape))
        _check_cuts(spec, cuts)
        cuts = tile_cuts(spec.shape, dtypes.itemsize(spec.dtype), cuts)
        count = prod(map(len, cuts))
        leaves.append(TiledLeaf(first, count, cuts))
        first += count
        if first > MAX_TILES:
            raise LimitError(f"more than {MAX_TILES} tiles (MAX_TILES)")
    return TiledTree(tuple(structure), tuple(specs), tuple(leaves), dict(outer_cuts))


def _check_cuts(spec: LeafSpec, cuts: Cuts) -> None:
    ends = [(*starts, size) for starts, size in zip(cuts, spec.shape, strict=False)]
    if len(cuts) != len(spec.shape) or not all(
        starts[:1] == (0,) and (len(starts) == 2 or all(a < b for a, b in pairwise(starts)))
        for starts in ends
    ):
        raise FormatError(f"{path_label(spec.key_path)}: cuts that do not fit {spec.shape}")


def tile_cuts(shape: Sequence[int], itemsize: int, cuts: Cuts) -> Cuts:
    """Return finer cuts, so that no tile is larger than TILE_BYTES.

    The longest axis of the tiles is halved, the first one of equals, until they are small enough.

    >>> tile_cuts((4096, 4096), 2, ((0,), (0,)))
    ((0, 1024, 2048, 3072), (0, 2048))
    """
    widths = [
        [b - a for a, b in pairwise((*starts, size))]
        for starts, size in zip(cuts, shape, strict=True)
    ]
    counts = [1] * len(shape)

    def longest(axis: int) -> int:
        return -(-max(widths[axis]) // counts[axis])

    while prod(map(longest, range(len(shape)))) * itemsize > TILE_BYTES:
        axes = [n for n in range(len(shape)) if min(widths[n]) >= 2 * counts[n]]
        if not axes:
            break
        counts[max(axes, key=lambda axis: (longest(axis), -axis))] *= 2
    return tuple(
        [
            tuple(
                [
                    start + i * width // count
                    for start, width in zip(starts, each, strict=True)
                    for i in range(count)
                ]
            )
            for starts, each, count in zip(cuts, widths, counts, strict=True)
        ]
    )
