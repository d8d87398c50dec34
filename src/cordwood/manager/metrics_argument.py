"""The argument `metrics=` of a save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat


def as_metrics(metrics: Mapping[str, SupportsFloat] | None) -> dict[str, float]:
    """Return metrics as floats; arrays of one element are converted too. Raises TypeError."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"metrics: expected a dict of numbers by name, found {metrics!r:.80}")
    floats = {}
    for name, value in (metrics or {}).items():
        if type(name) is not str:
            raise TypeError(f"metrics: expected names that are str, found {name!r:.80}")
        try:
            floats[name] = float(value)
        except (TypeError, ValueError, OverflowError) as e:
            raise TypeError(f"metrics: {name}: expected a number, found {value!r:.80}") from e
    return floats
