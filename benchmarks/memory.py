"""How much memory an operation takes beyond what the process held before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["extra_bytes", "give_back", "peak_bytes", "reset_peak"]


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


def peak_bytes() -> int:
    """The peak of resident memory since it was last reset."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {field}")
