"""Statistics of one leaf, which is read a few MiB at a time, or only a sample of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from operator import sub
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.comparing.heat_map import HeatMap, HeatMapSums
from cordwood.comparing.histogram import bin_counts
from cordwood.index import ARRAY_KINDS, Box, Inline
from cordwood.io.progress import Report, report_progress
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.read_in_parts import read_in_parts
from cordwood.plan.split_arrays import all_boxes, chunks_of, sample_boxes
from cordwood.sharding.boxes import element_count

_PART_BYTES = 4 << 20
_PART_ELEMENTS = 1 << 20

_KEPT_BYTES = 4 << 20  # an array or sample of at most this size is read once, and kept meanwhile
_BINS = 24
_FIRST = 8


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
        sample = boxes_to_read(leaf.shape, item, chunks)
    read = partial(read_in_parts, checkpoint._reader, leaf, sample, part_elements=_PART_ELEMENTS)
    with report_progress(count * item * (1 if is_kept else 2), progress):
        in_memory = list(read()) if is_kept else None
        parts = read if in_memory is None else lambda: iter(in_memory)
        return _statistics(leaf.shape, parts, bins, count == size, with_heat_map=with_heat_map)


def boxes_to_read(
    shape: Sequence[int], item: int, chunks: Sequence[int], most: int = _PART_ELEMENTS
) -> list[Box]:
    """Return the parts of an array to read one after another, of at most so many elements."""
    limit = min(_PART_BYTES, most * item)
    return list(all_boxes(shape, item_bytes=item, limit_bytes=limit, chunk_shape=chunks))


def _statistics(
    shape: Sequence[int],
    parts: Callable[[], Iterator[tuple[Box, np.ndarray]]],
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


def _first_elements(shape: Sequence[int], box: Box, array: np.ndarray) -> dict[int, Any]:
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
    parts: Iterable[np.ndarray], low: float, high: float, bins: np.ndarray
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


def _numbers(array: np.ndarray) -> np.ndarray:
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
