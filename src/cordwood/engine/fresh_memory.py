"""Memory for many bytes, which goes back to the system as soon as it is let go of."""

from __future__ import annotations

import mmap
import tracemalloc
from contextlib import suppress

import numpy as np

__all__ = ["fresh_bytes"]

_MAPPED_BYTES = 4 << 20  # from here on; more mappings than a process may have are not needed then


def fresh_bytes(size_bytes: int, *, alignment: int) -> np.ndarray:
    """A 1-d array of uint8 of no particular values, its address a multiple of `alignment`.

    Much memory is mapped for itself, in huge pages, which makes filling it about four times
    faster. Allocators keep what threads free, up to 64 MiB in each thread's own arena: chunks of
    30 MiB, decoded one after another by several threads, took 300 MiB. Under tracemalloc, which
    is not told of mappings, numpy is asked.

    Raises MemoryError.
    """
    if size_bytes >= _MAPPED_BYTES and alignment <= mmap.PAGESIZE and not tracemalloc.is_tracing():
        with suppress(OSError):  # no more mappings: numpy has other ways
            pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(pages, np.uint8)
    whole = np.empty(size_bytes + alignment, np.uint8)
    skip = -whole.ctypes.data % alignment
    return whole[skip : skip + size_bytes]
