"""A command in a terminal of a fixed size, and its final screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["COLUMNS", "LINES", "Shown", "run_in_terminal", "screen_text"]

COLUMNS, LINES = 100, 40
_CONTROL = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Shown(NamedTuple):
    """The final screen and the exit code."""

    text: str
    code: int


def run_in_terminal(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Shown:
    """Run a command with a pseudo-terminal as its input, output and errors."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
    finally:
        os.close(theirs)
    data = b""
    try:
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # EIO: the other end is closed
                break
            if not chunk:
                break
            data += chunk
    finally:
        os.close(ours)
    return Shown(screen_text(data.decode()), child.wait())


def screen_text(output: str) -> str:
    r"""Return the text that a terminal shows for some output, without colours and erased text.

    >>> screen_text("\x1b[1mtitle\x1b[0m\r\n50%\r\x1b[2Kdone\r\n")
    'title\ndone\n'
    """
    lines, row, column = [""], 0, 0
    for match in _CONTROL.finditer(output):
        text, kind = match[0], match[3]
        if text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif kind is None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
        elif kind == "A":
            row = max(0, row - int(match[2] or 1))
        elif kind == "K":
            lines[row] = "" if match[2] == "2" else lines[row][:column]
        elif kind not in "mhl":  # colours; the cursor shown or hidden
            raise ValueError(f"unknown control sequence: {text!r}")
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line.rstrip()}\n" for line in lines)
