"""The resource of the statistics of one leaf."""

from __future__ import annotations

import math

from cordwood.comparing.array_change import has_numbers
from cordwood.comparing.leaf_statistics import leaf_statistics
from cordwood.index import leaf_text, size_in_memory
from cordwood.io.progress import Report
from cordwood.keypath import format_path
from cordwood.viewer.leaf_view import leaf_at
from cordwood.viewer.sources import Sources

_BINS = 48


def statistics_view(
    sources: Sources, report: Report | None, *, source: str, number: int, read: str
) -> dict[str, object]:
    """Return statistics of the elements of a leaf.

    Raises TypeError for a leaf that is no array of numbers.
    """
    with sources.checkpoint(source) as checkpoint:
        leaf = leaf_at(checkpoint, number)
        path = format_path(leaf.key_path)
        if not has_numbers(leaf):
            raise TypeError(
                f"{path}: there are no statistics of {leaf_text(leaf)}; expected an array of "
                "numbers"
            )
        summary = leaf_statistics(
            checkpoint,
            path,
            bins=_BINS,
            sampled=read != "all",
            with_heat_map=bool(leaf.shape),
            progress=report,
        )
    item_bytes = size_in_memory(leaf) // (math.prod(leaf.shape) or 1)
    histogram = {"low": summary.min, "high": summary.max, "counts": summary.histogram}
    heat = None
    if summary.heat is not None and summary.heat.values:
        # Four digits make it half as long.
        values = [None if value is None else float(f"{value:.4g}") for value in summary.heat.values]
        heat = {**summary.heat._asdict(), "values": values}
    return {
        **summary._asdict(),
        "read_bytes": summary.size * item_bytes,
        "read_size": summary.size,
        "size": math.prod(leaf.shape),
        "histogram": None if summary.min is None else histogram,
        "first": [f"{n:.6g}" if isinstance(n, float) else str(n) for n in summary.first],
        "heat": heat,
    }
