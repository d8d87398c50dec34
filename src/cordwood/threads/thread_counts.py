"""The number of threads for each kind of work."""

from __future__ import annotations

import os

_WAITING_THREADS = 16
_TRANSFER_THREADS = 8


def default_threads() -> int:
    """Return the number of cores that this process may use, but at most four."""
    return min(4, len(os.sched_getaffinity(0)))


def reading_threads(*, latency_bound: bool) -> int:
    """Return the number of threads to read files with: more if reads wait for a network."""
    return _WAITING_THREADS if latency_bound else default_threads()


def transfer_threads() -> int:
    """Return the number of threads to read what is sent to accelerators.

    One thread copies 3 to 5 GB/s out of the page cache; the link of an accelerator takes 25 to 60.
    """
    return min(_TRANSFER_THREADS, len(os.sched_getaffinity(0)))
