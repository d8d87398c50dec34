"""A saved step as policies see it, and the order of steps by a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import (
    Literal,
    NamedTuple,
)

from cordwood.public_names import document_fields


@document_fields
class SavedStep(NamedTuple):
    """A saved step, as a policy sees it.

    Attributes:
        step: its number.
        time: when its save began, in seconds since 1970.
        metrics: its metrics by name.
    """

    step: int
    time: float
    metrics: Mapping[str, float]


def metric_problem(steps: Sequence[SavedStep], metric: str) -> str:
    """Return a line where steps have metrics and none has this one; "" otherwise."""
    names = sorted({name for step in steps for name in step.metrics})
    if not names or metric in names:
        return ""
    return f"no step has the metric {metric!r}; the metrics that steps have: {', '.join(names)}"


def sort_by_metric(
    steps: Sequence[SavedStep], metric: str, mode: Literal["min", "max"]
) -> list[SavedStep]:
    """Return the steps that have a value of a metric, the best first; of equal ones the newer."""
    sign = 1.0 if mode == "min" else -1.0
    measured = [step for step in steps if not math.isnan(step.metrics.get(metric, math.nan))]
    return sorted(measured, key=lambda step: (sign * step.metrics[metric], -step.step))
