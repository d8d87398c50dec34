"""Allocation of large buffers as mappings of their own: for loads, and as scratch of threads."""

from __future__ import annotations

import mmap
import tracemalloc
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cordwood.io.reusable_memory import keep_for_next_load, take_kept_pages

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
    kept = take_kept_pages(sizes)
    if tracemalloc.is_tracing():
        kept = {}
    buffers = []
    for size in sizes:
        pages = kept[size].pop() if kept.get(size) else None
        reused = pages is not None
        if pages is None:
            pages = _map_pages(size, alignment=alignment)
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
