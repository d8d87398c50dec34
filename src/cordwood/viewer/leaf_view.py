"""The resources `leaf`, `statistics` and `verify`: one leaf, its elements, and all digests."""

from __future__ import annotations

from typing import Any

from cordwood.io.progress import Report
from cordwood.viewer.sources import Sources


def leaf_view(sources: Sources, report: Report | None, *, source: str, number: int) -> Any:
    """Return the type of a leaf, and where its bytes are."""
    raise NotImplementedError


def statistics_view(
    sources: Sources, report: Report | None, *, source: str, number: int, read: str
) -> Any:
    """Return statistics of the elements of a leaf."""
    raise NotImplementedError


def verify_view(sources: Sources, report: Report | None, *, source: str) -> Any:
    """Check every byte of a source against its digest, and return the result."""
    raise NotImplementedError
