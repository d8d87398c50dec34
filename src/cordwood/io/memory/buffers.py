"""Buffers that bytes are read into: mappings of their own, and the choice of their pages."""

from __future__ import annotations

import mmap
import tracemalloc
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cordwood.io.memory.memory_for_next_load import keep_for_next_load, take_kept_pages

PAGE_BYTES = 4096  # of memory and of files: what direct I/O is aligned to
_SLOW_NANOSECONDS_PER_BYTE = 1.0  # free huge pages: 0.15, small ones: 0.4, given back: above 2
_TIMED_BYTES = 1 << 20  # smaller reads are not timed
_FIRST_TRIAL, _LONGEST_TRIAL = 8, 64  # reads into small pages before huge ones are tried again


class PageSize:
    """The choice between huge and small pages for new memory, made read by read, by timing.

    The first write to a huge page takes 0.1 ms if the system has a free one, four times less than
    the first writes to 512 small pages. But a virtual machine gives free memory back to its host in
    blocks of the size of a huge page, and then this write takes 4 to 5 ms, while small pages often
    come from fragments that were not given back. Neither can be known in advance, and both change
    within a load.

    A slow read into huge pages starts a trial of small pages; a slow read ends the trial. Each
    trial is twice as long as the one before. So if the host must provide every huge page, few
    reads are slow; and where a single read is slow by chance, this costs only a few ms. Threads
    share the choice without a lock: a lost update makes a trial a little longer.
    """

    def __init__(self) -> None:
        self._remaining = 0  # reads left of the trial of small pages
        self._trial = _FIRST_TRIAL

    @property
    def is_small(self) -> bool:
        """True while small pages are the better choice."""
        return self._remaining > 0

    def record_read(self, size_bytes: int, nanoseconds: int, *, small: bool) -> None:
        """Take the processor time of one read into account.

        Args:
            size_bytes: the size of the read.
            nanoseconds: the processor time of the reading thread, without waiting.
            small: True if it was read into small pages.
        """
        if size_bytes < _TIMED_BYTES:
            return
        slow = nanoseconds > size_bytes * _SLOW_NANOSECONDS_PER_BYTE
        if small:
            self._remaining = 0 if slow else self._remaining - 1
        elif slow:
            self._remaining = self._trial
            self._trial = min(2 * self._trial, _LONGEST_TRIAL)
        else:
            self._trial = _FIRST_TRIAL


def advise_small(pages: mmap.mmap, start: int, stop: int) -> None:
    """Make the kernel use small pages for bytes [start, stop) of a mapping, if untouched yet."""
    start -= start % mmap.PAGESIZE
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE, start, stop - start)


_MAPPED_BYTES = 4 << 20  # least size of a mapping: keeps below the system's limit on their number


class Buffer(NamedTuple):
    """Memory that a load reads into."""

    array: np.ndarray  # 1-d, uint8
    untouched: mmap.mmap | None  # its mapping, if no page of it has been written to yet


def allocate_buffers(sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
    """Return buffers of these sizes (bytes), whose addresses are multiples of `alignment`.

    Memory kept from an earlier load of this process is reused for buffers of the same size; the
    rest of it is given back to the system before anything is allocated. Raises MemoryError.
    """
    reusable = take_kept_pages(sizes)
    if tracemalloc.is_tracing():
        reusable = {}
    buffers = []
    for size in sizes:
        reused = bool(reusable.get(size))
        pages = reusable[size].pop() if reused else _map_pages(size, alignment=alignment)
        if pages is None:
            buffers.append(Buffer(_small_bytes(size, alignment), None))
            continue
        array = np.frombuffer(pages, np.uint8)
        weakref.finalize(array, keep_for_next_load, pages).atexit = False
        buffers.append(Buffer(array, None if reused else pages))
    return buffers


def allocate_bytes(size_bytes: int, *, alignment: int) -> np.ndarray:
    """Return an uninitialized 1-d array of uint8, whose address is a multiple of `alignment`.

    Its memory goes back to the system as soon as it is dropped. Raises MemoryError.
    """
    pages = _map_pages(size_bytes, alignment=alignment)
    return _small_bytes(size_bytes, alignment) if pages is None else np.frombuffer(pages, np.uint8)


def _map_pages(size_bytes: int, *, alignment: int) -> mmap.mmap | None:
    """Map private memory, in huge pages where possible; return None if numpy should allocate.

    Filling huge pages is about four times faster. A mapping is also freed at once. malloc keeps
    memory that threads free, up to 64 MiB in the arena of each thread: chunks of 30 MiB, decoded
    one after another by several threads, took 300 MiB. tracemalloc does not see mappings, so numpy
    allocates while it is tracing.
    """
    if size_bytes < _MAPPED_BYTES or alignment > mmap.PAGESIZE or tracemalloc.is_tracing():
        return None
    with suppress(OSError):  # no more mappings possible: numpy can still allocate
        pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages
    return None


def _small_bytes(size_bytes: int, alignment: int) -> np.ndarray:
    whole = np.empty(size_bytes + alignment, np.uint8)
    skip = -whole.ctypes.data % alignment
    return whole[skip : skip + size_bytes]


_LEAST_BYTES = 64 << 10


class GrowableBuffer:
    """A buffer that grows as bytes arrive, and of which parts can be released after they are read.

    It is made of private anonymous pages. Of a bytearray no part can be released.
    """

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
