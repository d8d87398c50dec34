"""Low-rank updates of leaves: scale * first @ second is added, a tile at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cordwood.combining.weighted_sum import add_weighted
from cordwood.formats.format_protocol import Opened
from cordwood.index import Box, Leaf
from cordwood.io.memory.block_memory import BlockMemory
from cordwood.io.recent_tiles import RecentTiles
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_specs import read_boxes
from cordwood.sharding.boxes import shape_of, slices, whole_box
from cordwood.threads.thread_counts import default_threads

_KEPT_BYTES = 64 << 20  # of factors, each of which is needed for all tiles of its leaf


class LowRankUpdate(NamedTuple):
    """The update of one leaf.

    Attributes:
        first, second: the numbers of the factors among the leaves of the adapter; the last axis of
            the first one and the first of the second one are the rank.
        transposed: True if both are stored with their axes reversed, and swapped.
        scale: the number by which the product is multiplied.
    """

    first: int
    second: int
    transposed: bool
    scale: float

    def factor_shapes(self, leaves: Sequence[Leaf]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the factors as they are multiplied."""
        first, second = leaves[self.first].shape, leaves[self.second].shape
        return (first[::-1], second[::-1]) if self.transposed else (first, second)


class LowRankUpdates:
    """The updates of leaves by an adapter, which are added as other checkpoints are.

    Args:
        reader: the open adapter.
        updates: the update of each leaf of the result that has one, by its number.
    """

    def __init__(self, reader: LeafReader, updates: Mapping[int, LowRankUpdate]) -> None:
        self.name = reader.path
        self._reader = reader
        self._updates = updates
        self._factors = RecentTiles(self._read, kept_bytes=_KEPT_BYTES, threads=default_threads())

    @property
    def opened(self) -> Opened:
        """The open adapter."""
        return self._reader.opened

    def add(
        self,
        totals: Mapping[int, Sequence[tuple[Box, np.ndarray]]],
        memory: BlockMemory,  # noqa: ARG002  (factors are kept)
    ) -> None:
        """Add the updates to boxes of leaves; products are of the dtype of the totals."""
        for number, some in totals.items():
            update = self._updates.get(number)
            for box, total in some if update is not None else ():
                assert update is not None
                add_weighted(total, self._product(update, box, total.dtype), update.scale)

    def _product(self, update: LowRankUpdate, box: Box, dtype: np.dtype) -> np.ndarray:
        first, second = self._factors.tile(update.first), self._factors.tile(update.second)
        if update.transposed:
            first, second = first.T, second.T
        axes = first.ndim - 1
        where = slices(box)
        rank = first.shape[-1]
        rows = first[where[:axes]].reshape(-1, rank).astype(dtype)
        columns = second[(slice(None), *where[axes:])].reshape(rank, -1).astype(dtype)
        with np.errstate(all="ignore"):
            product: np.ndarray = rows @ columns
        return product.reshape(shape_of(box))

    def _read(self, number: int) -> np.ndarray:
        leaves = self._reader.index.leaves
        (array,) = read_boxes(self._reader, leaves, {number: [whole_box(leaves[number].shape)]})
        return array
