"""Decoding of stored bytes: other byte orders, and elements packed into 4 or 6 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.index import Encoding


def decode_elements(
    raw: np.ndarray[Any, Any], encoding: Encoding, shape: tuple[int, ...], dtype: str
) -> np.ndarray[Any, Any]:
    """Return the elements of a leaf from its stored bytes (uint8[bytes])."""
    count = math.prod(shape)
    numpy_dtype = dtypes.to_numpy(dtype)
    if encoding == "swapped":
        return raw.view(numpy_dtype).byteswap(inplace=True).reshape(shape)
    if encoding in ("packed4", "packed6"):
        width = int(encoding[-1])
        bits = np.unpackbits(raw, bitorder="little")[: count * width].reshape(count, width)
        elements = np.packbits(bits, axis=1, bitorder="little")
        return elements.reshape(-1).view(numpy_dtype).reshape(shape)
    return raw.view(numpy_dtype).reshape(shape)
