"""The weights of a combination, as a caller passes them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Real
from typing import TypeVar

import numpy as np

from cordwood.combining.weighted_sum import Accumulate
from cordwood.storage.locations import Location, parse_location

PathOf = TypeVar("PathOf", bound="str | os.PathLike[str]")  # a mapping is invariant in its keys


def parse_weights(
    weights: Mapping[PathOf, float], accumulate: Accumulate
) -> list[tuple[Location, float]]:
    """Return the locations and their weights.

    Raises ValueError for another dtype of the totals, for a weight that is not finite in it, or if
    there is none; TypeError for one that is no number.
    """
    if accumulate not in ("float32", "float64"):
        raise ValueError(f'accumulate: expected "float32" or "float64", found {accumulate!r}')
    if not isinstance(weights, Mapping):
        raise TypeError(
            "expected a mapping of paths to weights, such as {'run/800': 0.5, 'run/900': 0.5}, "
            f"found {weights!r:.80}"
        )
    if not weights:
        raise ValueError("expected at least one checkpoint and its weight, found none")
    parsed: list[tuple[Location, float]] = []
    for path, weight in weights.items():
        if not isinstance(weight, Real) or isinstance(weight, bool):
            raise TypeError(f"{path}: expected a number as its weight, found {weight!r:.80}")
        number = float(weight)
        with np.errstate(over="ignore"):
            rounded = np.dtype(accumulate).type(number)
        if not math.isfinite(rounded):
            raise ValueError(f"{path}: expected a finite weight in {accumulate}, found {number!r}")
        parsed.append((parse_location(path), number))
    return parsed
