"""How much memory a block of a test takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Traced", "traced_memory"]


class Traced:
    """What a block has taken, once it has ended without an error."""

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
