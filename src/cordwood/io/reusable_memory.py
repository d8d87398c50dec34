"""Memory of dropped arrays, kept for the next load of the same process.

A program that loads again and again (an evaluation job, a loop over checkpoints) would otherwise
give 1.5 GB back, and the system would have to find and zero as much for the next load. Kept memory
is marked as free (MADV_FREE): the kernel takes it first when memory is short, and until then it
counts as resident. It is reused only for a buffer of the same size. Before a load allocates, it
gives back the kept memory that it cannot use; a save gives back all of it.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

_MOST_BYTES = 4 << 30
_SHARE_OF_MEMORY = 8  # never more than this part of the machine's memory


class _Kept:
    def __init__(self) -> None:
        self.pages: list[mmap.mmap] = []
        self.size_bytes = 0


_kept = _Kept()


def most_kept_bytes() -> int:
    """Return how much memory (bytes) is kept at most: 4 GiB, or an eighth of the machine's."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(_MOST_BYTES, physical // _SHARE_OF_MEMORY)


def keep_for_next_load(pages: mmap.mmap) -> None:
    """Keep a mapping that is no longer used, unless enough memory is kept already.

    Runs when the last array on the mapping is dropped, in any thread and between any two lines of
    code, so it takes no lock: two threads may count one mapping too few, until the next load.
    """
    kept = _kept
    if kept.size_bytes + len(pages) > _limit_bytes:
        return
    with suppress(OSError):  # a kernel without MADV_FREE: the mapping is given back
        pages.madvise(mmap.MADV_FREE)
        kept.size_bytes += len(pages)
        kept.pages.append(pages)


def take_kept_pages(sizes: Sequence[int]) -> dict[int, list[mmap.mmap]]:
    """Return kept mappings of the given sizes (bytes), by size; give back all others."""
    global _kept
    taken, _kept = _kept, _Kept()
    counts = Counter(sizes)
    reused: dict[int, list[mmap.mmap]] = {}
    for pages in taken.pages:
        same = reused.setdefault(len(pages), [])
        if len(same) < counts[len(pages)]:
            same.append(pages)
    return reused


def release_memory() -> None:
    """Give back the memory that cordwood keeps for the next load.

    cordwood keeps the memory of loaded arrays of 4 MiB and more after they are dropped: at most
    4 GiB, and at most an eighth of the machine's memory. The kernel takes it where memory is
    short, but until then it counts as resident. A `save` releases it, too. Arrays that are in use
    are not touched.

    Example:
        >>> import cordwood
        >>> cordwood.release_memory()
    """
    global _kept
    _kept = _Kept()


_limit_bytes = most_kept_bytes()
