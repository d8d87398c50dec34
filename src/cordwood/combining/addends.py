"""The addends of a combination: open checkpoints, each with its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cordwood.combining.weighted_sum import add_weighted
from cordwood.formats.format_protocol import Opened
from cordwood.index import Box, Leaf
from cordwood.io.memory.block_memory import BlockMemory
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_specs import read_boxes


class Addend(Protocol):
    """A tree, or updates of some leaves, to add to leaves of the result."""

    @property
    def name(self) -> str:
        """The addend for messages."""
        ...

    @property
    def opened(self) -> Opened:
        """The open checkpoint, which is closed with the combination."""
        ...

    def add(
        self, totals: Mapping[int, Sequence[tuple[Box, np.ndarray]]], memory: BlockMemory
    ) -> None:
        """Add what the addend has for boxes of leaves of the result to the totals, in place.

        It is read into `memory`.
        """
        ...


class WeightedTree(NamedTuple):
    """A checkpoint, of which each leaf is multiplied by a weight and added.

    Attributes:
        reader: the open checkpoint, with the leaves that are selected.
        weight: the weight.
        leaves: its leaves in the order of those of the result.
    """

    reader: LeafReader
    weight: float
    leaves: Sequence[Leaf]

    @property
    def name(self) -> str:
        return f"{self.weight:g} * {self.reader.path}"

    @property
    def opened(self) -> Opened:
        return self.reader.opened

    def add(
        self, totals: Mapping[int, Sequence[tuple[Box, np.ndarray]]], memory: BlockMemory
    ) -> None:
        boxes = {number: [box for box, _ in some] for number, some in totals.items()}
        arrays = iter(read_boxes(self.reader, self.leaves, boxes, memory=memory))
        for some in totals.values():
            for _, total in some:
                add_weighted(total, next(arrays), self.weight)
