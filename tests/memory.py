"""Peak memory of a block of a test."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Traced", "traced_memory"]


class Traced:
    """The result of a traced block; set when the block ends without an error."""

    peak_bytes: int


@contextmanager
def traced_memory() -> Iterator[Traced]:
    """Trace the memory that Python and numpy take in a block; the peak holds what is kept, too."""
    traced = Traced()
    tracemalloc.start()
    try:
        yield traced
        _, traced.peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
