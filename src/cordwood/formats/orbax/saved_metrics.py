"""The metrics of a step that Orbax's CheckpointManager has saved."""

from __future__ import annotations

from contextlib import suppress

from cordwood.formats.format_protocol import StepMetrics
from cordwood.formats.orbax.checkpoint_metadata import CheckpointMetadata, read_checkpoint_metadata
from cordwood.formats.orbax.json_files import as_float, read_object_if_any
from cordwood.formats.place import Place

METRICS_ITEM = "metrics"  # the item of the manager itself
_MAX_BYTES = 1 << 20


def saved_metrics(place: Place) -> StepMetrics | None:
    """Return the metrics that were saved with a step; None if there are none.

    The metrics are in `metrics/metrics`, as JSON; the time of the commit is in
    `_CHECKPOINT_METADATA`. A value that is not a number, or is too large for a float, is left out.
    """
    name = f"{METRICS_ITEM}/{METRICS_ITEM}"
    values, about = {}, CheckpointMetadata()
    with place.opened() as directory, suppress(OSError):
        values = read_object_if_any(directory, name, limit_bytes=_MAX_BYTES)
        about = read_checkpoint_metadata(directory)
    floats = {name: as_float(value) for name, value in values.items()}
    metrics = {name: number for name, number in floats.items() if number is not None}
    return StepMetrics(about.commit_seconds, metrics) if metrics else None
