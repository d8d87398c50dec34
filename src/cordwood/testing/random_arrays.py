"""Arrays of any dtype from a seed, with every bit pattern that the dtype has."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from cordwood import dtypes

_WIDTH = re.compile(r"u?int([124])|float([46])_e.*")  # of types of less than a byte


def elements(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """A C-order array of a dtype of `cordwood.dtypes`; the same seed gives the same bits.

    Seed 0 gives zeros, any other random bits: NaNs of every payload, infinities, subnormals.

    >>> elements("uint8", (3,), 0)
    array([0, 0, 0], dtype=uint8)
    """
    dtype = dtypes.to_numpy(name)
    if seed == 0:
        zeros = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
        return zeros.view(dtype).reshape(shape)
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.type in (np.longdouble, np.clongdouble):  # most of their bit patterns are no numbers
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
