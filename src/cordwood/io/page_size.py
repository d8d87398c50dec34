"""Huge or small pages for memory that is touched for the first time: chosen by timing.

The first touch of a huge page takes 0.1 ms where the system has one at hand, four times less than
that of 512 small pages. But a virtual machine gives free memory back to its host in blocks of the
size of a huge page, and then the touch takes 4 to 5 ms, while small pages often come from
fragments that were never given back. Neither is known beforehand, and both change within one load.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_SLOW_NANOSECONDS_PER_BYTE = 1.0  # huge pages at hand: 0.15, small ones: 0.4, cold ones: above 2
_LEAST_BYTES = 1 << 20  # of a read that says something
_FIRST_TRIAL, _LONGEST_TRIAL = 8, 64  # reads into small pages before huge ones are tried again


class PageSize:
    """The choice of one load, made read by read.

    A slow read into huge pages is followed by a trial of small ones, which a slow read ends. Each
    trial is twice as long as the one before, so that memory whose huge pages are all cold costs
    few slow reads, and one slow read on a warm machine costs a few ms. Threads share the choice
    without a lock: a lost update makes a trial a little longer.
    """

    def __init__(self) -> None:
        self._left = 0  # reads of the trial of small pages
        self._trial = _FIRST_TRIAL

    @property
    def is_small(self) -> bool:
        """True while small pages are the better choice."""
        return self._left > 0

    def record_read(self, size_bytes: int, nanoseconds: int, *, small: bool) -> None:
        """Take the processor time of one read into account.

        Args:
            size_bytes: how much was read.
            nanoseconds: the time that the reading thread ran, waiting not counted.
            small: whether it was read into small pages.
        """
        if size_bytes < _LEAST_BYTES:
            return
        slow = nanoseconds > size_bytes * _SLOW_NANOSECONDS_PER_BYTE
        if small:
            self._left = 0 if slow else self._left - 1
        elif slow:
            self._left = self._trial
            self._trial = min(2 * self._trial, _LONGEST_TRIAL)
        else:
            self._trial = _FIRST_TRIAL


def advise_small(pages: mmap.mmap, start: int, stop: int) -> None:
    """Have bytes [start, stop) of a mapping lie in small pages, as far as they are untouched."""
    start -= start % mmap.PAGESIZE
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE, start, stop - start)
