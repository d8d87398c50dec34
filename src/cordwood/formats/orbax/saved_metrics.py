"""The metrics of a step that Orbax's CheckpointManager has saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError
from cordwood.formats.format_protocol import Place
from cordwood.storage.readable_directory import ReadableDirectory

_MAX_BYTES = 1 << 20


class StepMetrics(NamedTuple):
    """The metrics of a step, and when it was committed."""

    time: float  # in seconds since 1970; 0 if it is not stored
    metrics: Mapping[str, float]


def saved_metrics(place: Place) -> StepMetrics | None:
    """Return the metrics that were saved with a step; None if there are none.

    The metrics are in `metrics/metrics`, as JSON; the time of the commit is in
    `_CHECKPOINT_METADATA`. A value that is not a number, or is too large for a float, is left out.
    """
    with place.opened() as directory:
        if not directory.has("metrics/metrics"):
            return None
        metrics = _members(directory, "metrics/metrics")
        about = _members(directory, "_CHECKPOINT_METADATA")
    every = {name: _as_float(value) for name, value in metrics.items()}
    numbers = {name: number for name, number in every.items() if number is not None}
    nanoseconds = _as_float(about.get("commit_timestamp_nsecs"))
    return StepMetrics((nanoseconds or 0.0) / 1e9, numbers) if numbers else None


def _members(directory: ReadableDirectory, name: str) -> dict[str, Any]:
    try:
        data = directory.read(name, limit_bytes=_MAX_BYTES)
        value = parse_json(data, f"{directory.name}/{name}", allow_nan=True)
    except (OSError, CordwoodError):
        return {}
    return value if type(value) is dict else {}


def _as_float(value: Any) -> float | None:
    """Return a number as a float; None for anything else."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
