"""Comparison of one leaf of a checkpoint with one of another: statistics, histogram and strip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cordwood import dtypes
from cordwood.api.array_change import (
    NO_CHANGE,
    ArrayChange,
    changes_of,
    combine_changes,
    measure_change,
)
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.diff_operands import CheckpointOperand
from cordwood.api.diff_result import LeafDiff, What
from cordwood.api.unequal_parts import chunk_rows
from cordwood.index import ARRAY_KINDS, Box, Leaf
from cordwood.io.progress import Report, report_progress
from cordwood.io.threads import map_in_threads
from cordwood.keypath import format_path
from cordwood.loading.match_containers import path_label
from cordwood.plan.leaf_text import leaf_text
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import element_count, whole_box

Array: TypeAlias = np.ndarray[Any, Any]

T = TypeVar("T")

_MOST = float(np.finfo(np.float64).max)
_PART_BYTES = 4 << 20
_GROUP_PARTS = 8  # read at a time
_SAMPLE_PART_BYTES = 256 << 10


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
    limit_bytes: int | None = None,
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
        limit_bytes: read about so many bytes of each leaf: parts at equal distances. None: all.
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
    rows = max(chunk_rows(one.pieces(i)), chunk_rows(other.pieces(j)), 1)
    boxes = _boxes(leaf.shape, item, rows, limit_bytes)
    size = sum(map(element_count, boxes))
    complete = size == element_count(whole_box(leaf.shape))
    strip = _Strip(leaf.shape, segments)

    def each_part(function: Callable[[Box, Array, Array], T]) -> Iterator[T]:
        for start in range(0, len(boxes), _GROUP_PARTS):
            group = boxes[start : start + _GROUP_PARTS]
            ours = one.read([(i, box) for box in group])
            theirs = other.read([(j, box) for box in group])
            yield from map_in_threads(function, list(zip(group, ours, theirs, strict=True)))

    def measured(box: Box, x: Array, y: Array) -> tuple[ArrayChange, tuple[Array, Array]]:
        return measure_change(x, y), strip.sums_of(box, changes_of(x, y))

    with report_progress(4 * size * item, progress):
        change = NO_CHANGE
        for part, sums in each_part(measured):
            change = combine_changes(change, part)
            strip.add(*sums)
        histogram = None
        if change.low <= change.high:
            low, high = max(change.low, -_MOST), min(change.high, _MOST)
            parts = each_part(lambda _, x, y: _binned(changes_of(x, y), low, high, bins))
            counts = sum(parts, np.zeros(bins, np.int64))
            histogram = Histogram(low, high, tuple(counts.tolist()))
    what: What = "value" if leaf.dtype == second.dtype else "dtype"
    blank = LeafDiff(path_label(leaf.key_path), what, leaf_text(leaf), leaf_text(second))
    difference = change.described(blank, leaf, size=size)
    return LeafComparison(difference, histogram, strip.means(), complete, size * item)


def _check_types(leaf: Leaf, second: Leaf) -> None:
    for each in (leaf, second):
        is_time = each.dtype.startswith(("datetime", "timedelta"))
        if each.kind not in ARRAY_KINDS or each.kind == "prng_key" or is_time:
            raise TypeError(
                f"{format_path(each.key_path)} is {leaf_text(each)}: expected an array of numbers"
            )
    if leaf.shape != second.shape:
        raise TypeError(
            f"{format_path(leaf.key_path)} is {leaf_text(leaf)} in a and {leaf_text(second)} in b: "
            "expected equal shapes"
        )


def _boxes(shape: Sequence[int], item: int, rows: int, limit_bytes: int | None) -> list[Box]:
    """Return the parts of an array to read, each contiguous in C order; all if they fit."""
    whole = element_count(whole_box(shape)) * item
    if limit_bytes is None or whole <= limit_bytes:
        return list(split_array(shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows))
    size = min(_SAMPLE_PART_BYTES, limit_bytes)
    parts = list(split_array(shape, item_bytes=item, limit_bytes=size, rows=rows))
    largest = max(map(element_count, parts)) * item
    count = max(1, limit_bytes // largest)
    return [parts[n * len(parts) // count] for n in range(min(count, len(parts)))]


def _binned(change: Array, low: float, high: float, bins: int) -> Array:
    """Return the number of values in each bin from low to high; NaNs do not count."""
    values = change[~np.isnan(change)]
    if low == high:
        counts = np.zeros(bins, np.int64)
        counts[0] = len(values)
        return counts
    if high / 2 - low / 2 > _MOST / 4:  # numpy.histogram refuses such bounds
        values, low, high = values / 4, low / 4, high / 4
    numbers = ((values - low) / (high - low) * bins).astype(np.int64)
    return np.bincount(np.clip(numbers, 0, bins - 1), minlength=bins)


class _Strip:
    """The mean |b - a| of each of some hundred segments of an array."""

    def __init__(self, shape: Sequence[int], segments: int) -> None:
        self._shape = shape
        self._size = element_count(whole_box(shape))
        self._count = min(segments, self._size)
        self._sums = np.zeros(self._count)
        self._sizes = np.zeros(self._count, np.int64)

    def sums_of(self, box: Box, change: Array) -> tuple[Array, Array]:
        """Return the sum of |b - a| and the number of finite elements of a part, by segment."""
        start, stop = element_range(box, self._shape)
        sums, sizes = np.zeros(self._count), np.zeros(self._count, np.int64)
        first, last = start * self._count // self._size, (stop - 1) * self._count // self._size
        for segment in range(first, last + 1):
            low = max(start, -(-segment * self._size // self._count))
            high = min(stop, -(-(segment + 1) * self._size // self._count))
            values = np.abs(change[low - start : high - start])
            values = values[~np.isnan(values)]
            # Divided before they are summed, so that the sum is finite.
            sums[segment], sizes[segment] = (values / self._size).sum(), len(values)
        return sums, sizes

    def add(self, sums: Array, sizes: Array) -> None:
        self._sums += sums
        self._sizes += sizes

    def means(self) -> tuple[float | None, ...]:
        return tuple(
            [
                float(total / size * self._size) if size else None
                for total, size in zip(self._sums.tolist(), self._sizes.tolist(), strict=True)
            ]
        )
