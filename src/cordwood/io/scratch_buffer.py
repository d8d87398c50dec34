"""Memory that a thread uses again and again."""

from __future__ import annotations

from cordwood.io.allocate import allocate_bytes
from cordwood.io.direct_io import PAGE_BYTES


class ScratchBuffer:
    """A thread's memory for bytes that cannot go straight to where they belong."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    def view(self, size_bytes: int) -> memoryview:
        """That many bytes from the start of a page on, of no particular value.

        The same ones as before where they suffice.
        """
        if len(self._view) < size_bytes:
            self._view = memoryview(b"")  # not both at once
            self._view = allocate_bytes(size_bytes, alignment=PAGE_BYTES).data
        return self._view[:size_bytes]
