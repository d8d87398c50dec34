"""How much memory an operation takes beyond what the process held before."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["extra_bytes", "give_back", "have_memory", "peak_bytes", "reset_peak"]

_MOST_BYTES = 4 << 30
_SMALL_PAGES_BYTES = 256 << 20


def extra_bytes(operation: Callable[[], Any]) -> int:
    """The peak of resident memory during the operation, less what was resident before.

    Memory that earlier operations freed is given back to the system first. Linux only: the
    kernel's own peak is reset and read, so that no moment is missed.
    """
    before = reset_peak()
    value = operation()
    peak = peak_bytes()
    del value
    return max(0, peak - before)


def reset_peak() -> int:
    """Begin anew to look for the peak; what is resident now."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def give_back() -> None:
    """Give memory that earlier operations freed back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def have_memory(size_bytes: int) -> None:
    """Have the machine hold that much free memory, at most 4 GiB, as one of metal does.

    The host of a virtual machine takes away what has been free for two seconds; to touch 1.5 GB
    of it takes a second then, and it depends on who came before which contender pays for that. So
    it is with small pages, which every object of Python's lies in, and which are kept apart from
    huge ones: after a load of Orbax's, cordwood's took 163 ms without those, 143 ms with them.
    """
    size = min(size_bytes, _MOST_BYTES)
    _touch(size, mmap.MADV_HUGEPAGE)
    _touch(min(size, _SMALL_PAGES_BYTES), mmap.MADV_NOHUGEPAGE)


def _touch(size_bytes: int, advice: int) -> None:
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(advice)
        for at in range(0, size_bytes, mmap.PAGESIZE):
            pages[at] = 1


def peak_bytes() -> int:
    """The peak of resident memory since it was last reset."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {field}")
