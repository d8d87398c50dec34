"""The change from one array to another: counts, norms, and the angle between them.

The two ways to measure a block, plain and with care, must agree in every number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cordwood.comparing.scaled_sums import ScaledSum, add_scaled
from cordwood.index import ARRAY_KINDS, Leaf

# Numbers that are compared at a time. They stay in the CPU cache, and OpenBLAS computes products of
# fewer than 10,000 numbers in the calling thread.
_BLOCK = 8192
_LEAST = 5e-324  # the smallest float64 above 0
_LEAST_SQUARES, _MOST_SQUARES = 1e-200, 1e280  # sums between these have lost nothing


class ArrayChange(NamedTuple):
    """The change from an array a to an array b, or from a part of one to a part of the other.

    Norms and products are sums over the elements that are finite in both.
    """

    size: int = 0  # the number of elements
    differing: int = 0  # this and the next three are those of `LeafDiff`
    bits: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    sign_flips: int = 0
    new_nan: int = 0
    new_inf: int = 0
    a_squares: ScaledSum = ScaledSum()
    b_squares: ScaledSum = ScaledSum()
    products: ScaledSum = ScaledSum()  # of a and b
    change_squares: ScaledSum = ScaledSum()  # of b - a
    low: float = math.inf  # the smallest b - a; inf if there is none
    high: float = -math.inf
    b_nan: int = 0  # the number of elements that are NaN in b

    @property
    def differs(self) -> bool:
        """True if an element differs in value or in bits."""
        return bool(self.differing or self.bits)


NO_CHANGE = ArrayChange()
VALUE_CHANGE = ArrayChange(differing=1)  # of a Python value


def has_numbers(leaf: Leaf) -> bool:
    """Return True for an array of numbers: not of times, and no PRNG keys."""
    is_time = leaf.dtype.startswith(("datetime", "timedelta"))
    return leaf.kind in ARRAY_KINDS and leaf.kind != "prng_key" and not is_time


def combine_changes(one: ArrayChange, other: ArrayChange) -> ArrayChange:
    """Return the change of an array from the changes of two parts of it."""
    return ArrayChange(
        one.size + other.size,
        one.differing + other.differing,
        one.bits + other.bits,
        max(one.max_abs, other.max_abs),
        max(one.max_rel, other.max_rel),
        one.sign_flips + other.sign_flips,
        one.new_nan + other.new_nan,
        one.new_inf + other.new_inf,
        add_scaled(one.a_squares, other.a_squares),
        add_scaled(one.b_squares, other.b_squares),
        add_scaled(one.products, other.products),
        add_scaled(one.change_squares, other.change_squares),
        min(one.low, other.low),
        max(one.high, other.high),
        one.b_nan + other.b_nan,
    )


def measure_change(a: np.ndarray, b: np.ndarray) -> ArrayChange:
    """Return the change from an array to another of equal shape; their dtypes may differ.

    Most of the work is done without the GIL, and a few hundred KiB of memory.
    """
    a, b = flat_native(a), flat_native(b)
    plain = _is_plain(a.dtype) and _is_plain(b.dtype)
    block = _BLOCK // 2 if "c" in (a.dtype.kind, b.dtype.kind) else _BLOCK  # complex: two numbers
    total = NO_CHANGE
    with np.errstate(all="ignore"):
        for start in range(0, len(a), block):
            x, y = a[start : start + block], b[start : start + block]
            change = _measure_plain(x, y) if plain else None
            total = combine_changes(total, change or _measure_any(x, y))
    return total


def changes_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return b - a as float64, one value per element; |b - a| for complex elements.

    It is NaN where a or b is not finite, and is clipped to the range of float64.
    """
    result = np.full(a.size, np.nan)
    with np.errstate(all="ignore"):
        x, y, finite = _finite_numbers(flat_native(a), flat_native(b))
        most = np.finfo(np.float64).max
        change = np.abs(y - x) if x.dtype.kind == "c" else _subtract(x, y)
        result[finite] = np.clip(change, -most, most)
    return result


def _is_plain(dtype: np.dtype) -> bool:
    """Return True for real dtypes whose elements float64 holds exactly."""
    if dtype.type.__module__ != "numpy":
        return True
    if dtype.kind == "f":
        return dtype.itemsize <= 8
    return dtype.kind in "biu" and dtype.itemsize <= 4


def _measure_plain(a: np.ndarray, b: np.ndarray) -> ArrayChange | None:
    """Measure a block of plain dtypes; None if an element is not finite, or a sum is not exact.

    Differences of such elements are 0 in float64 only if they are equal.
    """
    unequal = _count_unequal_bits(a, b) if a.dtype == b.dtype else None
    x = _as_float64(a)
    squares = _squares(x)
    if unequal == 0 and squares is not None:
        return ArrayChange(
            len(x), a_squares=squares, b_squares=squares, products=squares, low=0.0, high=0.0
        )
    y = _as_float64(b)
    change = y - x
    other_squares, change_squares = _squares(y), _squares(change)
    if squares is None or other_squares is None or change_squares is None:
        return None
    differing = int(np.count_nonzero(change != 0))
    bits = 0 if unequal is None else unequal - differing
    low, high = float(change.min()), float(change.max())
    max_rel = 0.0
    if differing:
        scale = np.abs(x)
        np.maximum(scale, np.abs(y), out=scale)
        np.maximum(scale, _LEAST, out=scale)  # for 0 / 0
        np.divide(np.abs(change), scale, out=scale)
        max_rel = float(scale.max())
    return ArrayChange(
        len(x),
        differing,
        bits,
        max(-low, high) if differing else 0.0,
        max_rel,
        int(np.count_nonzero((x < 0) & (y > 0)) + np.count_nonzero((x > 0) & (y < 0))),
        0,
        0,
        squares,
        other_squares,
        ScaledSum(float(np.dot(x, y))),
        change_squares,
        low,
        high,
    )


def _squares(x: np.ndarray) -> ScaledSum | None:
    """Return the sum of the squares; None if it is not finite, or may have lost small elements."""
    squares = float(np.dot(x, x))
    if _LEAST_SQUARES < squares < _MOST_SQUARES or (squares == 0 and not x.any()):
        return ScaledSum(squares)
    return None


def _count_unequal_bits(a: np.ndarray, b: np.ndarray) -> int:
    unsigned = f"u{a.dtype.itemsize}"
    return int(np.count_nonzero(a.view(unsigned) != b.view(unsigned)))


def _as_float64(array: np.ndarray) -> np.ndarray:
    if array.dtype.name == "bfloat16":  # the upper half of a float32; quicker than its own cast
        wide = array.view(np.uint16).astype(np.uint32)
        np.left_shift(wide, 16, out=wide)
        return wide.view(np.float32).astype(np.float64)
    return comparable(array).astype(np.float64)


def _measure_any(a: np.ndarray, b: np.ndarray) -> ArrayChange:
    """Measure a block of any dtypes and any elements."""
    result = compare_arrays(a, b)
    if a.dtype.kind in "mM":
        new_nan = int(np.count_nonzero(np.isnat(b) & ~np.isnat(a))) if b.dtype.kind in "mM" else 0
        return result._replace(new_nan=new_nan)
    wide_a, wide_b = comparable(a), comparable(b)
    if wide_b.dtype.kind in "fc":
        is_nan = np.isnan(wide_b)
        result = result._replace(
            b_nan=int(np.count_nonzero(is_nan)),
            new_nan=int(np.count_nonzero(is_nan & ~np.isnan(wide_a))),
            new_inf=int(np.count_nonzero(np.isinf(wide_b) & ~np.isinf(wide_a))),
        )
    x, y, _ = _finite_numbers(a, b)
    if not len(x):
        return result
    flips = ((x.real < 0) & (y.real > 0)) | ((x.real > 0) & (y.real < 0))
    if x.dtype.kind == "c":
        flips |= ((x.imag < 0) & (y.imag > 0)) | ((x.imag > 0) & (y.imag < 0))
        gap = np.abs(y - x)
        low, high = float(gap.min()), float(gap.max())
        x, y = x.view(x.real.dtype), y.view(y.real.dtype)
        change = _subtract(x, y)
    else:
        change = _subtract(x, y)
        low, high = float(change.min()), float(change.max())
    halved = 0
    if not np.isfinite(change).all():
        change, halved = _subtract(x / 2, y / 2), 1
    x, x_exponent = _scaled(x)
    y, y_exponent = _scaled(y)
    change, change_exponent = _scaled(change)
    return result._replace(
        sign_flips=int(np.count_nonzero(flips)),
        a_squares=ScaledSum(float(np.dot(x, x)), 2 * x_exponent),
        b_squares=ScaledSum(float(np.dot(y, y)), 2 * y_exponent),
        products=ScaledSum(float(np.dot(x, y)), x_exponent + y_exponent),
        change_squares=ScaledSum(float(np.dot(change, change)), 2 * (change_exponent + halved)),
        low=low,
        high=high,
    )


def _finite_numbers(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements that are finite in both arrays, in one dtype, and the mask of them."""
    x, y = comparable(a), comparable(b)
    kinds = {x.dtype.kind, y.dtype.kind}
    if kinds <= set("iu"):
        wide = np.promote_types(x.dtype, y.dtype)
        if wide.kind == "f":  # int64 and uint64
            wide = np.dtype(np.longdouble)
        return x.astype(wide), y.astype(wide), np.ones(len(x), bool)
    wide = np.promote_types(np.promote_types(x.dtype, y.dtype), np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite].astype(wide), y[finite].astype(wide), finite


def _subtract(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return y - x, in float64 for integers, which may not wrap around."""
    if x.dtype.kind not in "iu":
        difference: np.ndarray = y - x
        return difference
    # Larger minus smaller is right modulo 2**64, also if a subtraction overflows.
    gap = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
    signed: np.ndarray = np.where(y >= x, 1.0, -1.0) * gap
    return signed


def _scaled(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Return float64 values of at most 1, and the exponent of 2 that they were divided by."""
    if x.dtype.kind in "iu":
        x = x.astype(np.float64)
    most = np.abs(x).max()
    if not most:
        return x.astype(np.float64), 0
    exponent = int(np.frexp(most)[1])
    return np.ldexp(x, -exponent).astype(np.float64), exponent


def compare_arrays(a: np.ndarray, b: np.ndarray) -> ArrayChange:
    """Count the elements that differ of arrays of equal shape; their dtypes may differ.

    Norms and the like are left out.
    """
    a, b = flat_native(a), flat_native(b)
    same_dtype = a.dtype == b.dtype
    if same_dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8)):
        return ArrayChange(len(a))
    bits = _other_bits(a, b) if same_dtype else np.zeros(len(a), bool)
    x, y = comparable(a), comparable(b)
    with np.errstate(all="ignore"):
        differ = x != y
        if x.dtype.kind in "fc" or y.dtype.kind in "fc":
            differ &= ~((x != x) & (y != y))
        count = int(np.count_nonzero(differ))
        bits &= ~differ
        max_abs, max_rel = _largest(x[differ], y[differ]) if count else (0.0, 0.0)
    return ArrayChange(len(a), count, int(np.count_nonzero(bits)), max_abs, max_rel)


def flat_native(array: np.ndarray) -> np.ndarray:
    """Return the elements in C order as one axis, in native byte order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)


def _other_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    size = a.dtype.itemsize
    rows = a.view(np.uint8).reshape(-1, size) != b.view(np.uint8).reshape(-1, size)
    differs: np.ndarray = rows.any(axis=1)
    return differs


def comparable(array: np.ndarray) -> np.ndarray:
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


def _largest(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
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
