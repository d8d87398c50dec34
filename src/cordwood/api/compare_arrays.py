"""Comparison of arrays element by element."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class ArrayDifference(NamedTuple):
    """The number and size of the differences of two arrays; see `LeafDiff`."""

    differing: int = 0
    bits: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0


NO_DIFFERENCE = ArrayDifference()


def combine_differences(one: ArrayDifference, other: ArrayDifference) -> ArrayDifference:
    """Return the difference of an array from the differences of two parts of it."""
    return ArrayDifference(
        one.differing + other.differing,
        one.bits + other.bits,
        max(one.max_abs, other.max_abs),
        max(one.max_rel, other.max_rel),
    )


def compare_arrays(a: Array, b: Array) -> ArrayDifference:
    """Compare two arrays of equal shape; their dtypes may differ."""
    a, b = flat_native(a), flat_native(b)
    same_dtype = a.dtype == b.dtype
    if same_dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8)):
        return NO_DIFFERENCE
    bits = _other_bits(a, b) if same_dtype else np.zeros(len(a), bool)
    x, y = comparable(a), comparable(b)
    with np.errstate(all="ignore"):
        differ = x != y
        if x.dtype.kind in "fc" or y.dtype.kind in "fc":
            differ &= ~((x != x) & (y != y))
        count = int(np.count_nonzero(differ))
        bits &= ~differ
        if not count:
            return ArrayDifference(0, int(np.count_nonzero(bits)))
        max_abs, max_rel = _largest(x[differ], y[differ])
    return ArrayDifference(count, int(np.count_nonzero(bits)), max_abs, max_rel)


def flat_native(array: Array) -> Array:
    """Return the elements in C order as one axis, in native byte order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)


def _other_bits(a: Array, b: Array) -> Array:
    size = a.dtype.itemsize
    rows = a.view(np.uint8).reshape(-1, size) != b.view(np.uint8).reshape(-1, size)
    differs: Array = rows.any(axis=1)
    return differs


def comparable(array: Array) -> Array:
    """Return the elements in a dtype of numpy's own, which it can compare and subtract."""
    kind = array.dtype.kind
    if kind in "mM":
        return array.view(np.int64)
    if kind == "b":
        return array.view(np.uint8)
    if kind in "iufc" and array.dtype.type.__module__ == "numpy":
        return array
    name = array.dtype.name
    return array.astype(np.int8 if name.startswith(("int", "uint")) else np.float32)


def _largest(x: Array, y: Array) -> tuple[float, float]:
    """Return the largest |x - y|, and the largest |x - y| / max(|x|, |y|)."""
    if x.dtype.kind in "iu" and x.dtype == y.dtype:
        # Larger minus smaller is right modulo 2**64, also if a subtraction overflows.
        gap = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
        scale = np.maximum(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
        return float(gap.max()), float((gap.astype(np.float64) / scale).max())
    wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    if x.dtype.itemsize > np.dtype(wide).itemsize or y.dtype.itemsize > np.dtype(wide).itemsize:
        wide = np.clongdouble if wide is np.complex128 else np.longdouble  # type: ignore[assignment]
    x, y = x.astype(wide), y.astype(wide)
    gap = np.abs(x - y)
    gap[~np.isfinite(gap)] = np.inf
    scale = np.maximum(np.abs(x), np.abs(y))
    relative = np.where(np.isfinite(gap), gap / scale, np.inf)
    return float(gap.max()), float(relative.max())
