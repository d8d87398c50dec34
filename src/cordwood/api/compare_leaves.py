"""Comparison of one leaf of a checkpoint with one of another: statistics, histogram and strip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.api.array_change import (
    NO_CHANGE,
    ArrayChange,
    changes_of,
    combine_changes,
    has_numbers,
    measure_change,
)
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.diff_operands import Array, CheckpointOperand, map_parts
from cordwood.api.diff_result import LeafDiff, What
from cordwood.api.leaf_statistics import bin_counts
from cordwood.index import Box, Leaf, leaf_text
from cordwood.io.progress import Report, report_progress
from cordwood.keypath import format_path, path_label
from cordwood.plan.split_arrays import Part, all_boxes, chunks_of, sample_boxes
from cordwood.sharding.boxes import element_count, whole_box

_MOST = float(np.finfo(np.float64).max)
_PART_BYTES = 4 << 20
_PART_ELEMENTS = 1 << 18  # of a part; comparing takes up to 80 bytes for each


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
        limit_bytes = min(_PART_BYTES, _PART_ELEMENTS * item)
        boxes = list(
            all_boxes(leaf.shape, item_bytes=item, limit_bytes=limit_bytes, chunk_shape=chunks)
        )
    parts = [Part(i, box, element_count(box) * item) for box in boxes]
    size = sum(map(element_count, boxes))
    strip = _Strip(leaf.shape, segments)

    def measured(box: Box, x: Array, y: Array) -> tuple[ArrayChange, tuple[Array, Array]]:
        return measure_change(x, y), strip.sums_of(box, changes_of(x, y))

    with report_progress(4 * size * item, progress):
        change = NO_CHANGE
        for _, (change_of_part, sums) in map_parts(measured, parts, one, other, {i: j}):
            change = combine_changes(change, change_of_part)
            strip.add(*sums)
        histogram = None
        if change.low <= change.high:
            low, high = np.clip((change.low, change.high), -_MOST, _MOST).tolist()

            def binned(_: Box, x: Array, y: Array) -> Array:
                change = changes_of(x, y)
                return bin_counts(change[~np.isnan(change)], low, high, bins)

            counts = np.zeros(bins, np.int64)
            for _, counts_of_part in map_parts(binned, parts, one, other, {i: j}):
                counts += counts_of_part
            histogram = Histogram(low, high, tuple(counts.tolist()))
    what: What = "value" if leaf.dtype == second.dtype else "dtype"
    blank = LeafDiff(path_label(leaf.key_path), what, leaf_text(leaf), leaf_text(second))
    difference = change.described(blank, leaf, size=size)
    return LeafComparison(difference, histogram, strip.means(), complete, size * item)


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


class _Strip:
    """The mean |b - a| of each of some hundred segments of an array, in C order."""

    def __init__(self, shape: Sequence[int], segments: int) -> None:
        self._shape = shape
        self._size = element_count(whole_box(shape))
        self._count = min(segments, self._size)
        self._sums = np.zeros(self._count)
        self._sizes = np.zeros(self._count, np.int64)

    def sums_of(self, box: Box, change: Array) -> tuple[Array, Array]:
        """Return the sum of |b - a| and the number of finite elements of a part, by segment."""
        positions = np.zeros(1, np.int64)
        for start, stop, size in zip(box.start, box.stop, self._shape, strict=True):
            positions = (positions[:, None] * size + np.arange(start, stop)).reshape(-1)
        finite = ~np.isnan(change)
        segments = (positions * self._count // self._size)[finite]
        # Divided before they are summed, so that the sum is finite.
        weights = np.abs(change[finite]) / self._size
        sums = np.bincount(segments, weights, minlength=self._count)
        return sums, np.bincount(segments, minlength=self._count)

    def add(self, sums: Array, sizes: Array) -> None:
        """Add the sums of a part."""
        self._sums += sums
        self._sizes += sizes

    def means(self) -> tuple[float | None, ...]:
        """Return the mean of each segment; None where nothing was added."""
        return tuple(
            [
                total / size * self._size if size else None
                for total, size in zip(self._sums.tolist(), self._sizes.tolist(), strict=True)
            ]
        )
