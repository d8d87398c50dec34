"""Files that look old: a load of one that was just written waits for the kernel's clock to tick."""

from __future__ import annotations

import os
import time
from pathlib import Path


def write_old(path: Path, data: bytes) -> None:
    """Write a file anew, and date it back."""
    path.unlink(missing_ok=True)  # ext4 flushes a file that is truncated and written again
    path.write_bytes(data)
    date_back(path)


def date_back(path: str | os.PathLike[str]) -> None:
    """Say that a file was written two seconds ago."""
    past_ns = time.time_ns() - 2 * 10**9
    os.utime(path, ns=(past_ns, past_ns))
