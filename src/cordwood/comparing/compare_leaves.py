"""The change of one leaf from one checkpoint to another: its statistics, a histogram, a strip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.comparing.array_change import (
    NO_CHANGE,
    ArrayChange,
    changes_of,
    combine_changes,
    has_numbers,
    measure_change,
)
from cordwood.comparing.heat_map import positions
from cordwood.comparing.histogram import Histogram, bin_counts
from cordwood.comparing.leaf_diff import LeafDiff, What, with_statistics
from cordwood.comparing.leaf_statistics import boxes_to_read
from cordwood.comparing.operands import CheckpointOperand, map_parts
from cordwood.index import Box, Leaf, leaf_text
from cordwood.io.progress import Report, report_progress
from cordwood.keypath import format_path, path_label
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.read_in_parts import cut_array
from cordwood.plan.split_arrays import Part, chunks_of, sample_boxes
from cordwood.sharding.boxes import element_count, whole_box

_PAIR_ELEMENTS = 1 << 18  # of a part of two leaves; comparing takes up to 80 bytes for each

_MOST = float(np.finfo(np.float64).max)


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
        boxes = boxes_to_read(leaf.shape, item, chunks, _PAIR_ELEMENTS)
    parts = [Part(i, box, element_count(box) * item) for box in boxes]
    size = sum(map(element_count, boxes))
    whole_size = element_count(whole)
    segments = min(segments, whole_size)
    strip = np.zeros((2, segments))  # of each segment: the sum of |b - a|, and how many they are

    def measured(box: Box, x: np.ndarray, y: np.ndarray) -> tuple[ArrayChange, np.ndarray]:
        total, sums = NO_CHANGE, np.zeros((2, segments))
        for part, a, b in _cut_pair(box, x, y):
            change = changes_of(a, b)
            finite = ~np.isnan(change)
            segment_of = (positions(part, leaf.shape) * segments // whole_size)[finite]
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

            def binned(box: Box, x: np.ndarray, y: np.ndarray) -> np.ndarray:
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


def _cut_pair(
    box: Box, x: np.ndarray, y: np.ndarray
) -> Iterator[tuple[Box, np.ndarray, np.ndarray]]:
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
