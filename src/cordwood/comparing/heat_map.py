"""Heat maps: a picture of where in an array its values are large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cordwood.index import Box
from cordwood.sharding.boxes import shape_of

_MAX_TILES = 64  # along each side
_MIN_SHARE = 0.25  # of a tile that was read, compared with the tile that was read most


class HeatMap(NamedTuple):
    """The tiles of an array as a matrix: its last axis are columns, all others together rows.

    Attributes:
        rows: the number of rows of tiles.
        columns: the number of columns of tiles.
        tile: the rows and columns of elements of a tile.
        values: the mean absolute value of the finite elements of each tile, row by row; NaN or
            infinity for a tile that has no finite ones; None for a tile of which nothing was read,
            or much less than of others: its mean would be noise.
        nan: the number of NaNs in each tile.
    """

    rows: int
    columns: int
    tile: tuple[int, int]
    values: tuple[float | None, ...]
    nan: tuple[int, ...]


class HeatMapSums:
    """The sums from which a heat map is made, box by box; about 100 KiB whatever the array."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape) or (1,)
        rows, columns = math.prod(self._shape[:-1]), self._shape[-1]
        self._tile = (max(1, -(-rows // _MAX_TILES)), max(1, -(-columns // _MAX_TILES)))
        tiles = -(-rows // self._tile[0]), -(-columns // self._tile[1])
        self._sums = np.zeros(tiles, np.float64)
        self._finite = np.zeros(tiles, np.int64)
        self._nan = np.zeros(tiles, np.int64)
        self._read = np.zeros(tiles, np.int64)

    def add(self, box: Box, values: np.ndarray) -> None:
        """Add the elements of a box, real numbers as a flat array."""
        if not box.start:
            box = Box((0,), (1,))
        matrix = np.abs(values.reshape(-1, shape_of(box)[-1]), dtype=np.float64)
        rows_of_box = Box(box.start[:-1], box.stop[:-1])
        rows = positions(rows_of_box, self._shape[:-1]) // self._tile[0]
        columns = np.arange(box.start[-1], box.stop[-1]) // self._tile[1]
        # The tiles ascend: where each begins among the rows and columns, and how often it is.
        rows, row_starts, row_counts = np.unique(rows, return_index=True, return_counts=True)
        columns, starts, counts = np.unique(columns, return_index=True, return_counts=True)
        where = np.ix_(rows, columns)

        def add(sums: np.ndarray, matrix: np.ndarray) -> None:
            of_rows = np.add.reduceat(matrix, starts, axis=1, dtype=sums.dtype)
            sums[where] += np.add.reduceat(of_rows, row_starts, axis=0)

        sizes = np.outer(row_counts, counts)
        self._read[where] += sizes
        finite = np.isfinite(matrix)
        if finite.all():
            self._finite[where] += sizes
        else:
            add(self._finite, finite)
            add(self._nan, np.isnan(matrix))
            matrix[~finite] = 0
        add(self._sums, matrix)

    def _tile_sizes(self) -> np.ndarray:
        """Return the number of elements of each tile; tiles at the end may be smaller."""
        matrix = (math.prod(self._shape[:-1]), self._shape[-1])
        ends = [
            np.minimum(size, np.arange(count + 1) * step)
            for size, count, step in zip(matrix, self._sums.shape, self._tile, strict=True)
        ]
        return np.outer(*map(np.diff, ends))

    def finish(self) -> HeatMap:
        """Return the heat map of what has been added."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._sums / self._finite
        means[(self._finite == 0) & (self._nan == 0)] = math.inf
        shares = (self._read / self._tile_sizes()).reshape(-1)
        read = (shares > 0) & (shares >= shares.max(initial=0.0) * _MIN_SHARE)
        values = [
            value if is_read else None
            for value, is_read in zip(means.reshape(-1).tolist(), read.tolist(), strict=True)
        ]
        rows, columns = self._sums.shape
        return HeatMap(
            rows, columns, self._tile, tuple(values), tuple(self._nan.reshape(-1).tolist())
        )


def positions(box: Box, shape: Sequence[int]) -> np.ndarray:
    """Return the position of each element of a box among those of its array, in C order."""
    positions = np.zeros(1, np.int64)
    for start, stop, size in zip(box.start, box.stop, shape, strict=True):
        positions = (positions[:, None] * size + np.arange(start, stop)).reshape(-1)
    return positions
