"""Number of open file descriptors of this process."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

__all__ = ["open_descriptors"]


def open_descriptors(below: Path | None = None) -> int:
    """Count the open descriptors, or those of files below a directory.

    Call it first before what is watched begins: what older garbage holds open would go at any time.
    """
    gc.collect()
    names = os.listdir("/proc/self/fd")
    if below is None:
        return len(names)
    count = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # listdir's own, or one of another thread
            count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{below}/")
    return count
