"""Histograms: counts of numbers in bins of equal width."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


def bin_counts(values: np.ndarray, low: float, high: float, count: int) -> np.ndarray:
    """Return the number of values (float64) in each of `count` bins from low to high.

    numpy.histogram refuses bounds that are adjacent floats or very far apart.
    """
    if math.isinf(high - low):
        values, low, high = values / 2, low / 2, high / 2
    bins = ((values - low) / (high - low or 1) * count).astype(np.int64)
    return np.bincount(np.minimum(bins, count - 1), minlength=count)


class Histogram(NamedTuple):
    """Counts of numbers in bins of equal width."""

    low: float  # the lower end of the first bin: the smallest of the numbers
    high: float  # the upper end of the last bin: the largest
    counts: tuple[int, ...]
