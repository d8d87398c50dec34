"""The arithmetic of a linear combination, in a fixed order of operations. Pure.

The total of each element begins as -0.0, to which any number can be added without a change. For
each checkpoint in turn the element is converted to the dtype of the total, multiplied by the
weight, which is rounded to that dtype too, and added. Each product and each sum is rounded; there
is no fused multiply-add. Complex numbers are two real ones. At the end the total is rounded once,
to the dtype of the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from cordwood import dtypes

Accumulate: TypeAlias = Literal["float32", "float64"]

_STEP = 1 << 16  # elements at a time: with their product they stay in the cache of a core


def total_dtype(names: Iterable[str], accumulate: Accumulate) -> str:
    """Return the dtype of the total: `accumulate`, or a wider one where an operand is wider.

    >>> total_dtype(["bfloat16"], "float32"), total_dtype(["float64"], "float32")
    ('float32', 'float64')
    """
    wide = [dtypes.to_numpy(name) for name in names if dtypes.itemsize(name) > 4]
    return dtypes.name_of(np.result_type(np.dtype(accumulate), *wide))


def new_total(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return a total to which nothing has been added: -0.0 everywhere."""
    total = np.empty(shape, dtypes.to_numpy(dtype))
    _real(total)[...] = -0.0
    return total


def add_weighted(total: np.ndarray, array: np.ndarray, weight: float) -> None:
    """Add an array times a weight to a contiguous total of its shape, in place."""
    sums = _real(total)
    factor = sums.dtype.type(weight)
    elements = _real(array.reshape(-1))
    buffer = np.empty(min(_STEP, sums.size), sums.dtype)
    with np.errstate(all="ignore"):
        for start in range(0, sums.size, _STEP):
            part, some = elements[start : start + _STEP], sums[start : start + _STEP]
            products = buffer[: some.size]
            if part.dtype != products.dtype:
                products[...] = part
                part = products
            np.multiply(part, factor, out=products)
            np.add(some, products, out=some)


def _real(array: np.ndarray) -> np.ndarray:
    """Return the elements of a contiguous array in one row, complex ones as two numbers each."""
    flat = array.reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat
