"""The choice between huge and small pages for new memory, made by timing.

The first write to a huge page takes 0.1 ms if the system has a free one, four times less than the
first writes to 512 small pages. But a virtual machine gives free memory back to its host in blocks
of the size of a huge page, and then this write takes 4 to 5 ms, while small pages often come from
fragments that were not given back. Neither can be known in advance, and both change within a load.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_SLOW_NANOSECONDS_PER_BYTE = 1.0  # free huge pages: 0.15, small ones: 0.4, given back: above 2
_LEAST_BYTES = 1 << 20  # smaller reads are not timed
_FIRST_TRIAL, _LONGEST_TRIAL = 8, 64  # reads into small pages before huge ones are tried again


class PageSize:
    """The choice of one load, made read by read.

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
        if size_bytes < _LEAST_BYTES:
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
