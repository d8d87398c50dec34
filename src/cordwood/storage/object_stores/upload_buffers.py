"""The buffers that the uploads of a call share."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from cordwood.errors import StorageError
from cordwood.io.memory.buffers import PAGE_BYTES, allocate_bytes
from cordwood.storage.object_stores.request_loop import POLL_SECONDS


class UploadBuffers:
    """A few buffers for parts of uploads, made when first needed.

    Args:
        limit: the most buffers.
        size_bytes: the size of each.
    """

    def __init__(self, limit: int, size_bytes: int) -> None:
        self._limit = limit
        self._size_bytes = size_bytes
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        # One thread at a time takes from the queue: in Python 3.11 `get` with a timeout may never
        # return if another thread takes what it was woken for.
        self._taking = threading.Lock()
        self._made = 0

    def take(self, is_given_up: Callable[[], bool]) -> memoryview:
        """Return a buffer; wait until one is free."""
        while not is_given_up():
            with self._taking, suppress(queue.Empty):
                return self._free.get(timeout=0 if self._made < self._limit else POLL_SECONDS)
            with self._taking:
                is_new = self._made < self._limit
                self._made += is_new
            if is_new:
                return allocate_bytes(self._size_bytes, alignment=PAGE_BYTES).data
        raise StorageError(0, "the upload was given up")

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer that was not lent."""
        self._free.put(buffer)

    def lend(self, buffer: memoryview, start: int, stop: int) -> memoryview:
        """Return a part of a buffer, which comes back once nobody refers to that part."""
        part = buffer[start:stop]
        weakref.finalize(part, self._free.put, buffer)
        return part
