"""A combination of open checkpoints, read as one: tiles are computed when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.combining.addends import Addend, WeightedTree
from cordwood.combining.plan_combination import CombinationPlan, result_specs
from cordwood.combining.weighted_sum import new_total
from cordwood.index import ARRAY_KINDS, Box
from cordwood.io.memory.block_memory import BlockMemories, BlockMemory
from cordwood.io.progress import METER
from cordwood.io.recent_tiles import RecentTiles
from cordwood.loading.cast import convert_dtype
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_target import Target
from cordwood.loading.stored_specs import read_boxes, stored_specs
from cordwood.sharding.boxes import shape_of
from cordwood.threads.thread_counts import reading_threads
from cordwood.tiles.tiled_checkpoint import open_tiles

_RECENT_BYTES = 36 << 20  # the eight threads of a save read parts of nine tiles at a time


class TileComputer(NamedTuple):
    """The computation of the tiles of a combination.

    Attributes:
        plan: the plan.
        addends: what is added, in this order.
        copied_from: the checkpoint of the leaves that are not added up.
        memories: the memory that the threads read into.
    """

    plan: CombinationPlan
    addends: Sequence[Addend]
    copied_from: WeightedTree
    memories: BlockMemories

    def compute(self, number: int) -> np.ndarray:
        """Return the bytes of a tile (uint8[size]). Raises what reading does."""
        meter = METER.set(None)  # it counts what the caller reads of the combination
        try:
            with self.memories.one() as memory:
                return self._compute(number, memory)
        finally:
            METER.reset(meter)

    def _compute(self, number: int, memory: BlockMemory) -> np.ndarray:
        plan, tile = self.plan, self.plan.tiles[number]
        copied: dict[int, list[Box]] = {}
        totals: dict[int, list[tuple[Box, np.ndarray]]] = {}
        for leaf, box in tile:
            if plan.totals[leaf]:
                total = new_total(shape_of(box), plan.totals[leaf])
                totals.setdefault(leaf, []).append((box, total))
            else:
                copied.setdefault(leaf, []).append(box)
        for addend in self.addends if totals else ():
            addend.add(totals, memory)
        source = self.copied_from
        arrays = iter(read_boxes(source.reader, source.leaves, copied))
        sums = iter([total for some in totals.values() for _, total in some])
        parts = [self._rounded(leaf, next(sums if leaf in totals else arrays)) for leaf, _ in tile]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _rounded(self, leaf: int, array: np.ndarray) -> np.ndarray:
        """Return the bytes of a part of a leaf, in the dtype of the result."""
        name = self.plan.dtypes[leaf]
        if dtypes.name_of(array.dtype) != name:
            array = convert_dtype(array, Target(self.copied_from.leaves[leaf], "numpy", name))
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def open_combination(
    name: str,
    trees: Sequence[WeightedTree],
    addends: Sequence[Addend],
    plan: CombinationPlan,
    *,
    copied_from: WeightedTree,
    metadata: Mapping[str, str],
) -> LeafReader:
    """Return a reader of a combination, which closes the checkpoints when it is closed.

    Args:
        name: the name of the combination, for messages.
        trees: the checkpoints with all leaves of the result; the first says their kinds and order.
        addends: what is added, in this order; `trees` are among them.
        plan: the plan.
        copied_from: the checkpoint of the leaves that are not added up.
        metadata: the strings of the result.

    Raises UnsupportedFormatError for a value that cannot be read.
    """
    first = trees[0].reader
    index = first.index
    numbers = [number for number in plan.copied if index.leaves[number].kind not in ARRAY_KINDS]
    specs = stored_specs(copied_from.reader, [copied_from.leaves[number] for number in numbers])
    values: dict[int, Any] = dict(zip(numbers, [spec.value for spec in specs], strict=True))
    computer = TileComputer(plan, addends, copied_from, BlockMemories())
    inputs = [addend.opened for addend in addends]
    is_distant = any(file.latency_bound for opened in inputs for file in opened.files)
    threads = reading_threads(latency_bound=is_distant)
    return open_tiles(
        name,
        first.opened.format,
        index.structure,
        result_specs(index.leaves, plan.dtypes, values),
        plan.tiles,
        RecentTiles(computer.compute, kept_bytes=_RECENT_BYTES, threads=threads).tile,
        inputs=inputs,
        naming=index.naming,
        metadata=metadata,
        location=first.location,
    )
