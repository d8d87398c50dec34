"""Random arrays of any dtype, with every bit pattern of the dtype, made from a seed."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from cordwood import dtypes

_WIDTH = re.compile(r"u?int([124])|float([46])_e.*")  # dtypes of less than a byte


def elements(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Return a C-order array of a dtype of `cordwood.dtypes`; the same seed gives the same bits.

    Seed 0 gives zeros. Any other seed gives random bits, so that floating-point arrays have NaNs of
    every payload, infinities and subnormals.

    >>> elements("uint8", (3,), 0)
    array([0, 0, 0], dtype=uint8)
    """
    dtype = dtypes.to_numpy(name)
    if seed == 0:
        zeros = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
        return zeros.view(dtype).reshape(shape)
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.type in (np.longdouble, np.clongdouble):  # most of their bit patterns are invalid
        values = rng.standard_normal(count) + 1j * rng.standard_normal(count)
        parts = values if dtype.kind == "c" else values.real
        return parts.astype(dtype).reshape(shape)
    raw = np.frombuffer(rng.bytes(count * dtype.itemsize), np.uint8).copy()
    narrow = _WIDTH.fullmatch(name)
    if name == "bool":
        raw &= 1
    elif narrow:
        raw &= (1 << int(narrow[1] or narrow[2])) - 1
    return raw.view(dtype).reshape(shape)
