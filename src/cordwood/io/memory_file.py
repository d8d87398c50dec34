"""A file whose bytes are in memory, such as one that was decompressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.io.open_files import Closable, require_range

_SMALL_COPY_BYTES = 64 << 10


class MemoryFile(Closable):
    """A buffer that is read as a file; nothing is copied until it is read.

    Args:
        buffer: its bytes.
        name: for messages.
        checked_bytes: the number of bytes that a checksum has verified.
        discard: called with the start and stop of what `read_into` has read: nobody will want
            those bytes again.
    """

    name: str
    size_bytes: int
    checked_bytes: int

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        name: str = "<bytes>",
        *,
        checked_bytes: int = 0,
        discard: Callable[[int, int], None] | None = None,
    ) -> None:
        self.name = name
        self._view = memoryview(buffer).cast("B").toreadonly()
        self.size_bytes = len(self._view)
        self.checked_bytes = checked_bytes
        self._discard = discard

    def read(self, offset: int, length: int) -> bytes:
        require_range(self, offset, length)
        return bytes(self._view[offset : offset + length])

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        start = offset
        for view in views:
            part = self._view[offset : offset + len(view)]
            if len(view) < _SMALL_COPY_BYTES:
                view[:] = part
            else:  # numpy releases the GIL
                import numpy as np

                np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(part, np.uint8))
            offset += len(view)
        if self._discard is not None:
            self._discard(start, offset)

    def map(self) -> memoryview:
        return self._view
