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
    low, high, mean, squares = math.inf, -math.inf, 0.0, 0.0
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
            # Chan's update of mean and squares by a part, in place of sums that cancel.
            count = finite + values.size
            part_mean = float(values.mean(dtype=np.float64))
            delta = part_mean - mean
            part = float(np.square(values.astype(np.float64) - part_mean).sum())
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
            values = values[np.isfinite(values)].astype(np.float64)
            bins += np.histogram(values, _BINS, (low, high))[0]
    else:
        bins[0] = finite
    std = math.sqrt(squares / finite)
    return Statistics(
        size, nan, inf, zero, low, high, mean, std, tuple(bins.tolist()), tuple(first)
    )


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
    """Elements that numpy's functions take, flat."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        return np.abs(flat)
    if flat.dtype.kind in "iuf" and flat.dtype.type.__module__ == "numpy":
        return flat
    return flat.astype(np.float32)
