"""Statistics of the elements of one leaf, which is read a few MiB at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.read_parts import read_parts
from cordwood.index import ARRAY_KINDS, Encoded, Inline, Leaf
from cordwood.plan.split_arrays import split_array

Array: TypeAlias = np.ndarray[Any, Any]

_PART_BYTES = 4 << 20
_BINS = 24
_FIRST = 8


class LeafStatistics(NamedTuple):
    """The statistics of an array of numbers. NaNs and infinities are counted only as such."""

    size: int
    nan: int
    inf: int
    zero: int
    min: float | None  # of the finite elements; None if there are none
    max: float | None
    mean: float | None
    std: float | None
    histogram: tuple[int, ...]  # of the finite elements, in bins of equal width from min to max
    first: tuple[Any, ...]  # the first elements


def leaf_statistics(checkpoint: Checkpoint, key_path: str) -> LeafStatistics:
    """Return the statistics of a leaf; it is read twice: for its range, and for its histogram.

    Complex numbers count by their absolute value.

    Raises:
        KeyError: there is no such leaf; suggests the nearest name.
        TypeError: the leaf is not an array of numbers.
        CorruptionError: stored bytes do not match their digest.
    """
    leaf = checkpoint._find_leaf(key_path)
    if leaf.kind not in ARRAY_KINDS or leaf.dtype.startswith(("datetime", "timedelta")):
        raise TypeError(f"{key_path} is of kind {leaf.kind} {leaf.dtype}: no array of numbers")
    (located,) = checkpoint._with_pieces([leaf], [None])
    size = nan = zero = finite = 0
    low, high = math.inf, -math.inf
    first: list[Any] = []
    for array in _parts(checkpoint, located):
        size += array.size
        first += array.reshape(-1)[: _FIRST - len(first)].tolist()
        values = _numbers(array)
        zero += int(np.count_nonzero(values == 0))
        nan += int(np.count_nonzero(np.isnan(values)))
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            finite += values.size
    inf = size - nan - finite
    if not finite:
        return LeafStatistics(size, nan, inf, zero, None, None, None, None, (), tuple(first))
    mean, std = low, 0.0
    bins = np.zeros(_BINS, np.int64)
    if high > low:
        mean, std = _spread(_finite(checkpoint, located), low, high, bins)
    else:
        bins[0] = finite
    return LeafStatistics(
        size, nan, inf, zero, low, high, mean, std, tuple(bins.tolist()), tuple(first)
    )


def _finite(checkpoint: Checkpoint, leaf: Leaf) -> Iterator[Array]:
    """Yield the finite elements as float64, in parts."""
    for array in _parts(checkpoint, leaf):
        values = _numbers(array)
        yield values[np.isfinite(values)].astype(np.float64)


def _spread(parts: Iterable[Array], low: float, high: float, bins: Array) -> tuple[float, float]:
    """Return mean and standard deviation of values from low to high; count them in bins."""
    # Scaling by a power of 2 does not round, and keeps squares from overflowing.
    scale = math.ldexp(1.0, math.frexp(max(-low, high))[1] - 1)
    count, mean, squares = 0, 0.0, 0.0
    for part in parts:
        if not part.size:
            continue
        bins += _binned(part, low, high)
        # Chan's update of mean and squares by a part; plain sums would lose digits.
        values = part / scale
        before, count = count, count + values.size
        part_mean = float(values.mean())
        delta = part_mean - mean
        squares += float(np.square(values - part_mean).sum())
        squares += delta * delta * before * values.size / count
        mean += delta * values.size / count
    return mean * scale, math.sqrt(squares / count) * scale


def _binned(values: Array, low: float, high: float) -> Array:
    """Return the number of values (float64) in each bin.

    numpy.histogram refuses bounds that are adjacent floats or very far apart.
    """
    if math.isinf(high - low):
        values, low, high = values / 2, low / 2, high / 2
    bins = ((values - low) / (high - low) * _BINS).astype(np.int64)
    return np.bincount(np.minimum(bins, _BINS - 1), minlength=_BINS)


def _parts(checkpoint: Checkpoint, leaf: Leaf) -> Any:
    if isinstance(leaf.storage, Inline):
        yield np.asarray(leaf.storage.value)
        return
    rows = 1
    if isinstance(leaf.storage, Encoded) and leaf.storage.chunk_shape:
        rows = leaf.storage.chunk_shape[0]
    item = dtypes.itemsize(leaf.dtype)
    for box in split_array(leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
        yield read_parts(checkpoint, [(leaf, box)])[0]


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
