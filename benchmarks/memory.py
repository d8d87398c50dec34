"""The memory that an operation needs beyond what the process held before."""

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
    """Return the peak of resident memory during the operation, minus what was resident before.

    Memory that earlier operations freed is returned to the system first. Linux only: the kernel's
    own peak is reset and read, so no peak is missed.
    """
    before = reset_peak()
    value = operation()
    peak = peak_bytes()
    del value
    return max(0, peak - before)


def reset_peak() -> int:
    """Reset the peak of resident memory; return what is resident now."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def give_back() -> None:
    """Return memory that earlier operations freed to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def have_memory(size_bytes: int) -> None:
    """Make the machine hold that much free memory, at most 4 GiB, like a physical machine.

    The host of a virtual machine takes back memory that has been free for two seconds. Touching
    1.5 GB of it then takes a second, and the contender before decides which contender pays for it.
    The same is true for small pages, which hold all Python objects and are managed separately from
    huge ones: after a load by Orbax, cordwood's took 163 ms without small pages, 143 ms with them.
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
    """Return the peak of resident memory since the last reset."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {field}")
