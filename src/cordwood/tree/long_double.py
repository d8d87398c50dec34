"""Long doubles of x86: 80 bits of number in 16 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

# Not their characters: float8_e4m3fnuz of ml_dtypes has numpy's own of a complex long double.
_LONG = frozenset({np.dtype(np.longdouble).num, np.dtype(np.clongdouble).num})
_NUMBER_BYTES = 10
_ITEM_BYTES = 16


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a dtype take more memory than they fill."""
    # Another platform's long doubles have other mantissas, and no padding.
    return dtype.num in _LONG and np.finfo(np.longdouble).nmant == 63


def without_padding(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array; or a copy of it whose padding is zeros, where its elements have any.

    The padding is what lay in memory before: written as it is, the same tree would give other
    bytes each time, and they would tell what they should not.
    """
    if not has_padding(array.dtype):
        return array
    clean = array.astype(array.dtype.newbyteorder("="), order="C")
    clean.reshape(-1).view(np.uint8).reshape(-1, _ITEM_BYTES)[:, _NUMBER_BYTES:] = 0
    return clean
