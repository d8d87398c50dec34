"""The standard streams and the terminal of the process."""

from __future__ import annotations

import io
import os
import sys


def screen_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal at standard output, or (0, 0) if it is none."""
    try:
        return os.get_terminal_size(1)
    except OSError:
        return 0, 0


def prepare_streams() -> None:
    """Make standard output and error accept every text.

    A closed stream is replaced by one that discards the text. Any other stream escapes the
    characters that its encoding lacks, as Python escapes them.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
