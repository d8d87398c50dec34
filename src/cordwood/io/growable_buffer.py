"""A buffer that grows as bytes arrive; parts of it can be released after they are read."""

from __future__ import annotations

import mmap

_LEAST_BYTES = 64 << 10


class GrowableBuffer:
    """A growable buffer of private anonymous pages. Of a bytearray no part can be released."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # Shared anonymous memory, which is mmap's default, cannot grow.
        self._pages = mmap.mmap(-1, _LEAST_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def reserve(self, size_bytes: int) -> None:
        """Do nothing: memory is taken as bytes arrive, whatever size a header declares."""

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Not allowed once a view exists."""
        stop = self.size_bytes + len(data)
        room = len(self._pages)
        if stop > room:
            room = max(stop, room + room // 4)
            self._pages.resize(-(-room // mmap.PAGESIZE) * mmap.PAGESIZE)  # moves no bytes
        self._pages[self.size_bytes : stop] = data
        self.size_bytes = stop

    def view(self) -> memoryview:
        """Return all bytes that were added; the view keeps the memory alive."""
        return memoryview(self._pages)[: self.size_bytes].toreadonly()

    def release_pages(self, start: int, stop: int) -> None:
        """Release the whole pages in [start, stop); they read as zeros from now on."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self._pages.madvise(mmap.MADV_DONTNEED, start, stop - start)
