"""Long doubles of x86: numbers of 80 bits in 16 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

# By type number, not by type character: ml_dtypes' float8_e4m3fnuz uses that of clongdouble.
_LONG = frozenset({np.dtype(np.longdouble).num, np.dtype(np.clongdouble).num})
_NUMBER_BYTES = 10
_ITEM_BYTES = 16


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Return True if elements of a dtype have padding bytes."""
    # Long doubles of other platforms have other mantissas, and no padding.
    return dtype.num in _LONG and np.finfo(np.longdouble).nmant == 63


def without_padding(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or a copy whose padding bytes are zeros if its elements have padding.

    Padding holds whatever was in memory before. Written unchanged, equal trees would give
    different bytes, and the file could disclose other data of the process.
    """
    if not has_padding(array.dtype):
        return array
    clean = array.astype(array.dtype.newbyteorder("="), order="C")
    clean.reshape(-1).view(np.uint8).reshape(-1, _ITEM_BYTES)[:, _NUMBER_BYTES:] = 0
    return clean
