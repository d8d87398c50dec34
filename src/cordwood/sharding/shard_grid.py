"""Grids of shards: the cells of a sharded array, and the processes that hold each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cordwood.index import Box
from cordwood.sharding.boxes import Cuts, grid_cells


class ShardGrid(NamedTuple):
    """An array as a grid of cells, and the processes that hold each cell, in ascending order."""

    shape: tuple[int, ...]
    cuts: Cuts
    holders: tuple[tuple[int, ...], ...]  # of each cell, in C order


def single_process_grid(shape: Sequence[int], process: int = 0) -> ShardGrid:
    """Return the grid of an array that one process holds completely."""
    return ShardGrid(tuple(shape), ((0,),) * len(shape), ((process,),))


def shard_grid(sharding: Any, shape: Sequence[int]) -> ShardGrid:
    """Return the grid into which a jax.sharding.Sharding cuts an array of that shape.

    Raises:
        ValueError: the parts do not form a grid (jax has no such sharding).
    """
    holders: dict[Box, set[int]] = {}
    for device, box in device_boxes(sharding, shape).items():
        holders.setdefault(box, set()).add(device.process_index)
    cuts = tuple(
        [tuple(sorted({box.start[axis] for box in holders})) for axis in range(len(shape))]
    )
    grid = grid_cells(shape, cuts)
    if set(grid) != set(holders):
        raise ValueError(f"{sharding} cuts an array of shape {tuple(shape)} into parts of no grid")
    return ShardGrid(tuple(shape), cuts, tuple([tuple(sorted(holders[box])) for box in grid]))


def device_boxes(sharding: Any, shape: Sequence[int]) -> dict[Any, Box]:
    """Return the part of an array that each device holds, devices of other processes included."""
    boxes = {}
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        ranges = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        boxes[device] = Box(tuple([a for a, _ in ranges]), tuple([b for _, b in ranges]))
    return boxes
