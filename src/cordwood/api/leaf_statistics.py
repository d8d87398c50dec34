"""Statistics of one leaf, and of its change from one checkpoint to another.

A leaf is read a few MiB at a time, or only a sample of it.

One file: both have a histogram, and a picture of where in the array something is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from operator import sub
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.api.array_change import (
    NO_CHANGE,
    Array,
    ArrayChange,
    changes_of,
    combine_changes,
    has_numbers,
    measure_change,
)
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.diff import LeafDiff, What, with_statistics
from cordwood.api.diff_operands import CheckpointOperand, map_parts
from cordwood.index import ARRAY_KINDS, Box, Inline, Leaf, leaf_text
from cordwood.io.progress import Report, report_progress
from cordwood.keypath import format_path, path_label
from cordwood.loading.read_in_parts import cut_array, read_in_parts
from cordwood.plan.split_arrays import Part, all_boxes, chunks_of, sample_boxes
from cordwood.sharding.boxes import element_count, shape_of, whole_box

_MAX_TILES = 64  # along each side
_MIN_SHARE = 0.25  # of a tile that was read, compared with the tile that was read most
_PART_BYTES = 4 << 20
_PART_ELEMENTS = 1 << 20
_PAIR_ELEMENTS = 1 << 18  # of a part of two leaves; comparing takes up to 80 bytes for each
_KEPT_BYTES = 4 << 20  # an array or sample of at most this size is read once, and kept meanwhile
_BINS = 24
_FIRST = 8
_MOST = float(np.finfo(np.float64).max)


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


class LeafStatistics(NamedTuple):
    """The statistics of an array of numbers. NaNs and infinities are counted only as such."""

    size: int  # the number of elements that were read
    nan: int
    inf: int
    zero: int
    first: tuple[Any, ...]  # the first elements
    complete: bool  # False for a sample
    heat: HeatMap | None
    min: float | None = None  # of the finite elements; None if there are none
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    histogram: tuple[int, ...] = ()  # of the finite elements, in bins of equal width
    l2: float = 0.0  # of the finite elements; of a sample, an estimate for the whole leaf


def leaf_statistics(
    checkpoint: Checkpoint,
    key_path: str,
    *,
    bins: int = _BINS,
    sampled: bool = False,
    with_heat_map: bool = False,
    progress: Report | None = None,
) -> LeafStatistics:
    """Return the statistics of a leaf; a large one is read twice: for its range, and for the rest.

    Complex numbers count by their absolute value.

    Args:
        checkpoint: the open checkpoint.
        key_path: the key path of the leaf.
        bins: the number of bins of the histogram.
        sampled: read a few blocks that are spread over the leaf, together at most 4 MiB or one
            chunk, instead of all of it.
        with_heat_map: also return a heat map.
        progress: called from time to time while the leaf is read.

    Raises:
        KeyError: there is no such leaf; suggests the nearest name.
        TypeError: the leaf is not an array of numbers.
        CorruptionError: stored bytes do not match their digest.
    """
    leaf = checkpoint._find_leaf(key_path)
    if leaf.kind not in ARRAY_KINDS or leaf.dtype.startswith(("datetime", "timedelta")):
        raise TypeError(f"{key_path} is of kind {leaf.kind} {leaf.dtype}: no array of numbers")
    item = dtypes.itemsize(leaf.dtype)
    chunks = chunks_of(leaf)
    sample = None
    if sampled and not isinstance(leaf.storage, Inline):
        sample = sample_boxes(leaf.shape, item_bytes=item, chunk_shape=chunks)
    (leaf,) = checkpoint._reader.with_pieces([leaf], {} if sample is None else {0: sample})
    size = math.prod(leaf.shape)
    count = size if sample is None else sum(map(element_count, sample))
    is_kept = count * item <= _KEPT_BYTES
    if sample is None or count == size:
        sample = _boxes(leaf.shape, item, chunks)
    read = partial(read_in_parts, checkpoint._reader, leaf, sample, part_elements=_PART_ELEMENTS)
    with report_progress(count * item * (1 if is_kept else 2), progress):
        kept = list(read()) if is_kept else None
        parts = read if kept is None else lambda: iter(kept)
        return _statistics(leaf.shape, parts, bins, count == size, with_heat_map=with_heat_map)


def _boxes(
    shape: Sequence[int], item: int, chunks: Sequence[int], most: int = _PART_ELEMENTS
) -> list[Box]:
    """Return the parts of an array to read one after another, of at most so many elements."""
    limit = min(_PART_BYTES, most * item)
    return list(all_boxes(shape, item_bytes=item, limit_bytes=limit, chunk_shape=chunks))


def _statistics(
    shape: Sequence[int],
    parts: Callable[[], Iterator[tuple[Box, Array]]],
    bins: int,
    is_complete: bool,
    *,
    with_heat_map: bool,
) -> LeafStatistics:
    size = nan = zero = finite = 0
    low, high = math.inf, -math.inf
    first: dict[int, Any] = {}
    heat = HeatMapSums(shape) if with_heat_map else None
    for box, array in parts():
        first |= _first_elements(shape, box, array)
        size += array.size
        values = _numbers(array)
        if heat is not None and values.size:
            heat.add(box, values)
        zero += int(np.count_nonzero(values == 0))
        nan += int(np.count_nonzero(np.isnan(values)))
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            finite += values.size
    counts = np.zeros(bins, np.int64)
    heat_map = None if heat is None else heat.finish()
    inf = size - nan - finite
    values_of_first = [first[i] for i in takewhile(first.__contains__, range(_FIRST))]
    result = LeafStatistics(size, nan, inf, zero, tuple(values_of_first), is_complete, heat_map)
    if not finite:
        return result
    mean, std, l2 = low, 0.0, abs(low) * math.sqrt(finite)
    if high > low:
        mean, std, l2 = _moments((_numbers(array) for _, array in parts()), low, high, counts)
    else:
        counts[0] = finite
    share = size / (math.prod(shape) or 1)
    return result._replace(
        min=low,
        max=high,
        mean=mean,
        std=std,
        histogram=tuple(counts.tolist()),
        l2=l2 / math.sqrt(share),
    )


def _first_elements(shape: Sequence[int], box: Box, array: Array) -> dict[int, Any]:
    """Return those of the first elements of an array that are in a box, by their position."""
    if not shape:
        return {0: array.tolist()}
    places = zip(*np.unravel_index(range(min(_FIRST, math.prod(shape))), shape), strict=True)
    elements = {}
    for position, place in enumerate(places):
        ends = zip(box.start, place, box.stop, strict=True)
        if all(low <= index < high for low, index, high in ends):
            elements[position] = array[tuple(map(sub, place, box.start))].tolist()
    return elements


def _moments(
    parts: Iterable[Array], low: float, high: float, bins: Array
) -> tuple[float, float, float]:
    """Return the mean, the standard deviation and the L2 norm of the finite values.

    They are from low to high, and are counted in bins.
    """
    # Scaling by a power of 2 does not round, and keeps squares from overflowing.
    scale = math.ldexp(1.0, math.frexp(max(-low, high))[1] - 1)
    count, mean, squares = 0, 0.0, 0.0
    for numbers in parts:
        part = numbers[np.isfinite(numbers)].astype(np.float64)
        if not part.size:
            continue
        bins += bin_counts(part, low, high, len(bins))
        # Chan's update of mean and squares by a part; plain sums would lose digits.
        values = part / scale
        before, count = count, count + values.size
        part_mean = float(values.mean())
        delta = part_mean - mean
        squares += float(np.square(values - part_mean).sum())
        squares += delta * delta * before * values.size / count
        mean += delta * values.size / count
    l2 = math.sqrt(squares + mean * mean * count) * scale
    return mean * scale, math.sqrt(squares / count) * scale, l2


def bin_counts(values: Array, low: float, high: float, count: int) -> Array:
    """Return the number of values (float64) in each of `count` bins from low to high.

    numpy.histogram refuses bounds that are adjacent floats or very far apart.
    """
    if math.isinf(high - low):
        values, low, high = values / 2, low / 2, high / 2
    bins = ((values - low) / (high - low or 1) * count).astype(np.int64)
    return np.bincount(np.minimum(bins, count - 1), minlength=count)


def _numbers(array: Array) -> Array:
    """Return flat elements of a dtype that numpy's functions take, at most float64."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        if flat.dtype.kind == "c":
            flat = np.abs(flat)
        if flat.dtype == np.longdouble:
            return flat.astype(np.float64)
    if flat.dtype.kind in "iuf" and flat.dtype.type.__module__ == "numpy":
        return flat
    return flat.astype(np.float32)


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

    def add(self, box: Box, values: Array) -> None:
        """Add the elements of a box, real numbers as a flat array."""
        if not box.start:
            box = Box((0,), (1,))
        matrix = np.abs(values.reshape(-1, shape_of(box)[-1]), dtype=np.float64)
        rows_of_box = Box(box.start[:-1], box.stop[:-1])
        rows = _positions(rows_of_box, self._shape[:-1]) // self._tile[0]
        columns = np.arange(box.start[-1], box.stop[-1]) // self._tile[1]
        # The tiles ascend: where each begins among the rows and columns, and how often it is.
        rows, row_starts, row_counts = np.unique(rows, return_index=True, return_counts=True)
        columns, starts, counts = np.unique(columns, return_index=True, return_counts=True)
        where = np.ix_(rows, columns)

        def add(sums: Array, matrix: Array) -> None:
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

    def _tile_sizes(self) -> Array:
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


def _positions(box: Box, shape: Sequence[int]) -> Array:
    """Return the position of each element of a box among those of its array, in C order."""
    positions = np.zeros(1, np.int64)
    for start, stop, size in zip(box.start, box.stop, shape, strict=True):
        positions = (positions[:, None] * size + np.arange(start, stop)).reshape(-1)
    return positions


class Histogram(NamedTuple):
    """Counts of numbers in bins of equal width."""

    low: float  # the lower end of the first bin: the smallest of the numbers
    high: float  # the upper end of the last bin: the largest
    counts: tuple[int, ...]


class LeafComparison(NamedTuple):
    """The result of comparing two array leaves of equal shape."""

    difference: LeafDiff  # what is "value" or "dtype"; `differing` may be 0
    # Of b - a over elements that are finite in both, |b - a| if they are complex; None if none are.
    histogram: Histogram | None
    # For each segment of the elements in C order, the mean |b - a|; None where nothing was read.
    strip: tuple[float | None, ...]
    complete: bool  # False if only a sample was read
    read_bytes: int  # of elements, per side


def compare_leaves(
    a: Checkpoint,
    i: int,
    b: Checkpoint,
    j: int,
    *,
    sample: bool = False,
    bins: int = 64,
    segments: int = 256,
    progress: Report | None = None,
) -> LeafComparison:
    """Compare two array leaves of equal shape; their dtypes may differ.

    They are read a few MiB at a time, in several threads: once for the statistics, and again for
    the histogram.

    Args:
        a: the first checkpoint.
        i: the position of the leaf in its index.
        b: the second checkpoint.
        j: the position of the leaf in its index.
        sample: read some blocks of the leaves only, those of `plan.sample_boxes`.
        bins: the number of bins of the histogram.
        segments: the largest number of segments of the strip.
        progress: a function that is called from time to time.

    Raises:
        TypeError: the leaves are no arrays of numbers of equal shape.
        CorruptionError: stored bytes do not match their digest.
    """
    one, other = CheckpointOperand(a, None), CheckpointOperand(b, None)
    leaf, second = one.index.leaves[i], other.index.leaves[j]
    _check_types(leaf, second)
    item = max(dtypes.itemsize(leaf.dtype), dtypes.itemsize(second.dtype))
    chunks = chunks_of(one.pieces(i), other.pieces(j))
    whole = whole_box(leaf.shape)
    boxes = sample_boxes(leaf.shape, item_bytes=item, chunk_shape=chunks) if sample else [whole]
    complete = boxes == [whole]
    if complete:
        boxes = _boxes(leaf.shape, item, chunks, _PAIR_ELEMENTS)
    parts = [Part(i, box, element_count(box) * item) for box in boxes]
    size = sum(map(element_count, boxes))
    whole_size = element_count(whole)
    segments = min(segments, whole_size)
    strip = np.zeros((2, segments))  # of each segment: the sum of |b - a|, and how many they are

    def measured(box: Box, x: Array, y: Array) -> tuple[ArrayChange, Array]:
        total, sums = NO_CHANGE, np.zeros((2, segments))
        for part, a, b in _cut_pair(box, x, y):
            change = changes_of(a, b)
            finite = ~np.isnan(change)
            segment_of = (_positions(part, leaf.shape) * segments // whole_size)[finite]
            # Divided before they are summed, so that the sum is finite.
            weights = np.abs(change[finite]) / whole_size
            rows = [np.bincount(segment_of, each, minlength=segments) for each in (weights, None)]
            total, sums = combine_changes(total, measure_change(a, b)), sums + np.stack(rows)
        return total, sums

    with report_progress(4 * size * item, progress):
        change = NO_CHANGE
        for _, (change_of_part, sums) in map_parts(measured, parts, one, other, {i: j}):
            change = combine_changes(change, change_of_part)
            strip += sums
        histogram = None
        if change.low <= change.high:
            low, high = np.clip((change.low, change.high), -_MOST, _MOST).tolist()

            def binned(box: Box, x: Array, y: Array) -> Array:
                sums = np.zeros(bins, np.int64)
                for _, a, b in _cut_pair(box, x, y):
                    change = changes_of(a, b)
                    sums += bin_counts(change[~np.isnan(change)], low, high, bins)
                return sums

            counts = np.zeros(bins, np.int64)
            for _, counts_of_part in map_parts(binned, parts, one, other, {i: j}):
                counts += counts_of_part
            histogram = Histogram(low, high, tuple(counts.tolist()))
    what: What = "value" if leaf.dtype == second.dtype else "dtype"
    blank = LeafDiff(path_label(leaf.key_path), what, leaf_text(leaf), leaf_text(second))
    difference = with_statistics(blank, change, leaf, size=size)
    means = [total / n * whole_size if n else None for total, n in strip.T.tolist()]
    return LeafComparison(difference, histogram, tuple(means), complete, size * item)


def _cut_pair(box: Box, x: Array, y: Array) -> Iterator[tuple[Box, Array, Array]]:
    """Yield the elements of a box of both leaves in parts: a chunk that was read may be large."""
    for (part, a), (_, b) in zip(
        cut_array(box, x, _PAIR_ELEMENTS), cut_array(box, y, _PAIR_ELEMENTS), strict=True
    ):
        yield part, a, b


def _check_types(leaf: Leaf, second: Leaf) -> None:
    for each in (leaf, second):
        if not has_numbers(each):
            raise TypeError(
                f"{format_path(each.key_path)} is {leaf_text(each)}: expected an array of numbers"
            )
    if leaf.shape != second.shape:
        raise TypeError(
            f"{format_path(leaf.key_path)} is {leaf_text(leaf)} in a and {leaf_text(second)} in b: "
            "expected equal shapes"
        )
