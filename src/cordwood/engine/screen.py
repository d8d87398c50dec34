"""The terminal that the process prints to."""

from __future__ import annotations

import os

__all__ = ["screen_size"]


def screen_size() -> tuple[int, int]:
    """Columns and lines of the terminal that is standard output; zeros where it is none."""
    try:
        return os.get_terminal_size(1)
    except OSError:
        return 0, 0
