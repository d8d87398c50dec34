"""Memory of dropped arrays that is kept for the next load.

A program that loads again and again (an evaluation job, a loop over checkpoints) would otherwise
give 1.5 GB back, and the system would have to find and zero as much for the next load. Kept memory
is marked as free (MADV_FREE): the kernel takes it first when memory is short, and until then it
counts as resident. It is reused only for a buffer of the same size. Before a load allocates, it
gives back the kept memory that it cannot use. A save gives back all of it where memory is short; a
save in the background always does, because a training loop seldom loads again.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from cordwood.io.memory.machine_memory import available_memory_bytes, machine_memory_bytes

_MOST_BYTES = 4 << 30
_SHARE_OF_MEMORY = 8  # never more than this part of the machine's memory


class _Kept:
    def __init__(self) -> None:
        self.pages: list[mmap.mmap] = []
        self.size_bytes = 0


_kept = _Kept()


def most_kept_bytes() -> int:
    """Return how much memory (bytes) is kept at most: 4 GiB, or an eighth of the machine's."""
    return min(_MOST_BYTES, machine_memory_bytes() // _SHARE_OF_MEMORY)


def keep_for_next_load(pages: mmap.mmap) -> None:
    """Keep a mapping that is no longer used, unless enough memory is kept already.

    Runs when the last array on the mapping is dropped, in any thread and between any two lines of
    code, so it takes no lock: two threads may count one mapping too few, until the next load.
    """
    memory = _kept
    if memory.size_bytes + len(pages) > _limit_bytes:
        return
    with suppress(OSError):  # a kernel without MADV_FREE: the mapping is given back
        pages.madvise(mmap.MADV_FREE)
        memory.size_bytes += len(pages)
        memory.pages.append(pages)


def take_kept_pages(sizes: Sequence[int]) -> dict[int, list[mmap.mmap]]:
    """Return kept mappings of the given sizes (bytes), by size; give back all others."""
    counts = Counter(sizes)
    reused: dict[int, list[mmap.mmap]] = {}
    for pages in _take_all():
        same = reused.setdefault(len(pages), [])
        if len(same) < counts[len(pages)]:
            same.append(pages)
    return reused


def _take_all() -> list[mmap.mmap]:
    """Return all kept mappings, which are no longer kept.

    Each is taken in one step, by `pop`: another thread, or a load in a signal handler, between any
    two steps of this gets none of them a second time.
    """
    mappings: list[mmap.mmap] = []
    with suppress(IndexError):  # none is left
        while True:
            mappings.append(_kept.pages.pop())
    _kept.size_bytes = 0
    return mappings


def release_memory() -> None:
    """Give back the memory that cordwood keeps for the next load.

    cordwood keeps the memory of loaded arrays of 4 MiB and more after they are dropped: at most
    4 GiB, and at most an eighth of the machine's memory. The kernel takes it where memory is
    short, but until then it counts as resident. `save` releases it, too, if less memory than this
    is available; `save_async` and a manager's saves always do. Arrays that are in use are not
    touched.

    Example:
        >>> import cordwood
        >>> cordwood.release_memory()
    """
    _take_all()


_limit_bytes = most_kept_bytes()


def release_memory_if_short() -> None:
    """Give back the kept memory if the machine has less available memory than may be kept."""
    if _kept.pages and available_memory_bytes() < _limit_bytes:
        release_memory()
