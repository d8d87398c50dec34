"""What the process prints to."""

from __future__ import annotations

import io
import os
import sys


def screen_size() -> tuple[int, int]:
    """Columns and lines of the terminal that is standard output; zeros where it is none."""
    try:
        return os.get_terminal_size(1)
    except OSError:
        return 0, 0


def prepare_streams() -> None:
    """Let a closed stream take what is printed, and lose it; and any other all characters: those
    that it has no code for are escaped, as Python escapes them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
