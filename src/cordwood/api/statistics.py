"""What the elements of one leaf are like, read a few MiB at a time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.parts import read_parts
from cordwood.index import ARRAY_KINDS, Encoded, Inline, Leaf
from cordwood.plan.cuts import cut

__all__ = ["Statistics", "statistics"]

Array: TypeAlias = np.ndarray[Any, Any]

_PART_BYTES = 4 << 20
_BINS = 24
_FIRST = 8
_LARGE = 1e100  # float64 holds the sum of squares of any array of lesser elements


class Statistics(NamedTuple):
    """Of an array of numbers. NaNs and infinities count in their own columns alone."""

    size: int
    nan: int
    inf: int
    zero: int
    min: float | None  # of the finite elements; None where there are none
    max: float | None
    mean: float | None
    std: float | None
    histogram: tuple[int, ...]  # of the finite elements, in bins of one width from min to max
    first: tuple[Any, ...]  # the first elements


def statistics(checkpoint: Checkpoint, key_path: str) -> Statistics:
    """Read a leaf through, twice: once for its extent, once for its histogram.

    Complex numbers count by their absolute value.

    Raises:
        KeyError: there is no such leaf; suggests the nearest.
        TypeError: it is no array of numbers.
        CorruptionError: it is damaged.
    """
    leaf = checkpoint.leaf(key_path)
    if leaf.kind not in ARRAY_KINDS or leaf.dtype.startswith(("datetime", "timedelta")):
        raise TypeError(f"{key_path} is of kind {leaf.kind} {leaf.dtype}: no array of numbers")
    (located,) = checkpoint.located([leaf], [None])
    size = nan = zero = finite = 0
    low, high = math.inf, -math.inf
    mean = squares = np.longdouble(0)  # where it is wide: the squares of float64 may be too large
    first: list[Any] = []
    for array in _parts(checkpoint, located):
        size += array.size
        first += array.reshape(-1)[: _FIRST - len(first)].tolist()
        values = _numbers(array)
        zero += int(np.count_nonzero(values == 0))
        nan += int(np.count_nonzero(np.isnan(values)))
        values = values[np.isfinite(values)]
        if values.size:
            least, most = float(values.min()), float(values.max())
            low, high = min(low, least), max(high, most)
            wide = np.longdouble if max(-least, most) > _LARGE else np.float64
            # Chan's update of mean and squares by a part, in place of sums that cancel.
            count = finite + values.size
            with np.errstate(over="ignore"):
                part_mean = values.mean(dtype=wide)
                delta = np.longdouble(part_mean) - mean
                part = np.square(values.astype(wide) - part_mean).sum(dtype=wide)
                squares += part + delta * delta * finite * values.size / count
                mean += delta * values.size / count
            finite = count
    inf = size - nan - finite
    if not finite:
        return Statistics(size, nan, inf, zero, None, None, None, None, (), tuple(first))
    bins = np.zeros(_BINS, np.int64)
    if high > low:
        for array in _parts(checkpoint, located):
            values = _numbers(array)
            bins += _binned(values[np.isfinite(values)].astype(np.float64), low, high)
    else:
        bins[0] = finite
    std = float(np.sqrt(squares / finite))
    return Statistics(
        size, nan, inf, zero, low, high, float(mean), std, tuple(bins.tolist()), tuple(first)
    )


def _binned(values: Array, low: float, high: float) -> Array:
    """How many of the values, float64, lie in each bin.

    Not numpy's histogram, which refuses bounds that are next to each other or very far apart.
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
    for box in cut(leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
        yield read_parts(checkpoint, [(leaf, box)])[0]


def _numbers(array: Array) -> Array:
    """Elements that numpy's functions take, flat; none wider than float64."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        if flat.dtype.kind == "c":
            flat = np.abs(flat)
        if flat.dtype == np.longdouble:
            return flat.astype(np.float64)
    if flat.dtype.kind in "iuf" and flat.dtype.type.__module__ == "numpy":
        return flat
    return flat.astype(np.float32)
