"""A scratch buffer: memory that one thread reuses for each unit of its work."""

from __future__ import annotations

from cordwood.io.buffers import allocate_bytes
from cordwood.io.direct_io import PAGE_BYTES


class ScratchBuffer:
    """The memory of one thread for bytes that cannot be read or written in place."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    def view(self, size_bytes: int) -> memoryview:
        """Return a page-aligned, uninitialized view of that many bytes.

        It is the same memory as before, unless that was too small.
        """
        if len(self._view) < size_bytes:
            self._view = memoryview(b"")  # frees it before the new one is allocated
            self._view = allocate_bytes(size_bytes, alignment=PAGE_BYTES).data
        return self._view[:size_bytes]
