"""What a worker says of its run, line by line, each on the disk before it goes on."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

__all__ = ["Journal", "Line", "read_journal", "telling", "writing"]

STUCK_SECONDS = 200.0  # of a process: then it says where


class Line(NamedTuple):
    """One thing that happened, the step that it happened to, and a number or text with it."""

    what: str
    step: int
    detail: str


class Journal:
    """Lines for a file that outlives the worker."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, what: str, step: int, detail: object = "") -> None:
        """Add a line; it survives whatever comes next. From any thread."""
        text = str(detail).replace("\n", " ")
        os.write(self._fd, f"{what}\t{step}\t{text}\n".encode())
        os.fsync(self._fd)


@contextmanager
def writing(path: str) -> Iterator[Journal]:
    """A journal to write, anew."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        yield Journal(fd)
    finally:
        os.close(fd)


@contextmanager
def telling(path: str) -> Iterator[Journal]:
    """The same, for a worker: its error is the last line; where it is stuck stands beside it."""
    with writing(path) as lines, open(f"{path}.stacks", "w") as stacks:
        faulthandler.dump_traceback_later(STUCK_SECONDS, file=stacks)
        try:
            yield lines
        except BaseException as e:
            lines.write("error", 0, f"{type(e).__name__}: {e}")
            raise


def read_journal(path: Path) -> list[Line]:
    """The whole lines of a journal; [] where the worker did not come so far as to begin one."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    lines = [line.split("\t") for line in whole.splitlines()]
    return [Line(what, int(step), detail) for what, step, detail in lines]
