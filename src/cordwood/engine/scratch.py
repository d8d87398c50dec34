"""Memory that a thread uses again and again."""

from __future__ import annotations

import numpy as np

__all__ = ["Scratch"]


class Scratch:
    """A thread's memory for bytes that cannot go straight to where they belong."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    def of(self, size_bytes: int) -> memoryview:
        """That many bytes, of no particular value; the same ones as before where they suffice."""
        if len(self._view) < size_bytes:
            self._view = np.empty(size_bytes, np.uint8).data
        return self._view[:size_bytes]
