"""A file of which the first bytes are read once, by one request, and kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import Closable, ReadableFile, require_range


class ReadAheadFile(Closable):
    """A file whose header and first contents are needed together, where each read is a request.

    Args:
        file: the file, which this closes.
        head_bytes: how many bytes are read by the first read of any of them.
    """

    latency_bound = True

    def __init__(self, file: ReadableFile, head_bytes: int) -> None:
        self.name = file.name
        self.size_bytes = file.size_bytes
        self._file = file
        self._head_bytes = min(head_bytes, file.size_bytes)
        self._head: MemoryFile | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Read the first bytes, if they were not read yet."""
        self._read_head()

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.read_into(offset, [memoryview(data)])
        return bytes(data)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        length = sum(map(len, views))
        require_range(self, offset, length)
        remaining = max(0, self._head_bytes - offset)
        head, tail = _split(views, remaining)
        if head:
            self._read_head().read_into(offset, head)
        if tail:
            self._file.read_into(max(offset, self._head_bytes), tail)

    def _read_head(self) -> MemoryFile:
        with self._lock:
            if self._head is None:
                self._head = MemoryFile(self._file.read(0, self._head_bytes), self.name)
            return self._head

    def map(self) -> memoryview:
        return self._file.map()

    def close(self) -> None:
        self._file.close()


def _split(
    views: Sequence[memoryview], size_bytes: int
) -> tuple[list[memoryview], list[memoryview]]:
    """Return the first bytes of views, and the others."""
    head: list[memoryview] = []
    tail: list[memoryview] = []
    for view in views:
        if size_bytes:
            head.append(view[:size_bytes])
        if len(view) > size_bytes:
            tail.append(view[size_bytes:])
        size_bytes = max(0, size_bytes - len(view))
    return head, tail
