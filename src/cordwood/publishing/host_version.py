"""A version of a tree in the host memory of the process that publishes it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.deltas.tile_grid import TiledTree, tile_tree
from cordwood.devices.array_shards import ArrayShards, LocalShards
from cordwood.devices.copy_shards import copy_to_host
from cordwood.index import ARRAY_KINDS, Box, LeafSpec
from cordwood.io.snapshot import snapshot_leaves
from cordwood.sharding.boxes import ShardGrid, slices
from cordwood.tree.flatten import DescribedTree
from cordwood.tree.leaves import without_padding


class OwnTile(NamedTuple):
    """A tile that this process publishes."""

    number: int  # among the tiles of the tree
    leaf: int
    box: Box


class HostVersion:
    """The values of a tree at one moment, of which this process holds its shards.

    jax.Arrays on CPU are not copied: a view keeps the memory of each in use.

    Args:
        described: the tree.
        process: the number of this process.

    Attributes:
        tree: its tiles; no tile is in two shards.
        shards: of each leaf that jax has spread over processes.
        owners: of each tile, the process that publishes it: one of those that hold it.
        own: the tiles of this process.
    """

    def __init__(self, described: DescribedTree, process: int) -> None:
        outer_cuts = {
            number: shards.cuts
            for number, (spec, shards) in enumerate(
                zip(described.specs, described.shards, strict=True)
            )
            if spec.kind in ARRAY_KINDS and any(len(starts) > 1 for starts in shards.cuts)
        }
        self.tree: TiledTree = tile_tree(described.structure, described.specs, outer_cuts)
        # The arrays that every process holds for itself have none: a save compares their values.
        self.shards: list[ShardGrid | None] = list(described.shards)
        for leaf in described.local:
            self.shards[leaf] = None
        self._values = _on_host(snapshot_leaves(described.leaves))
        self.owners: list[int] = []
        self.own: list[OwnTile] = []
        for leaf in self.tree.arrays():
            for box in self.tree.boxes(leaf):
                owner = _owner(described.shards[leaf], box, leaf)
                if owner == process:
                    self.own.append(OwnTile(len(self.owners), leaf, box))
                self.owners.append(owner)

    def is_alike(self, other: HostVersion) -> bool:
        """Return True if both have the same leaves, of the same types, in the same tiles."""
        types = [
            (version.tree._replace(specs=()), [spec._replace(value=None) for spec in version.specs])
            for version in (self, other)
        ]
        return types[0] == types[1] and self.owners == other.owners

    @property
    def specs(self) -> Sequence[LeafSpec]:
        """The types of the leaves, and the values of those that are no arrays."""
        return self.tree.specs

    def value(self, leaf: int) -> Any:
        """Return an array leaf: an array, or its shards on this process."""
        return self._values[leaf]

    def tile(self, tile: OwnTile) -> np.ndarray:
        """Return the elements of a tile, which may be a view."""
        value = self._values[tile.leaf]
        if isinstance(value, LocalShards):
            return without_padding(value.part(tile.box))
        return without_padding(np.asarray(value)[slices(tile.box)])


def _on_host(values: Sequence[Any]) -> list[Any]:
    """Return the leaves of a snapshot in host memory; all copies are started before the first."""
    staged = [value for value in values if type(value) is ArrayShards]
    flat = [shard for value in staged for shard in value.shards]
    shardings = [sharding for value in staged for sharding in value.host_shardings]
    copies = iter(copy_to_host(flat, shardings) if flat else ())
    result = []
    for value in values:
        if type(value) is ArrayShards:
            shards = [np.asarray(next(copies)) for _ in value.shards]
            array = value.array
            result.append(LocalShards(array.shape, array.dtype, value.boxes, shards))
        else:
            result.append(value)
    return result


def _owner(shards: ShardGrid, box: Box, leaf: int) -> int:
    """Return the process that publishes a tile; those that hold it take turns."""
    cell = 0
    for starts, at in zip(shards.cuts, box.start, strict=True):
        cell = cell * len(starts) + bisect_right(starts, at) - 1
    holders = shards.holders[cell]
    return holders[(leaf + sum(box.start)) % len(holders)]
