"""The journal of a worker: one line per event, each flushed to disk before the worker goes on."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

STUCK_SECONDS = 200.0  # then a worker writes the stacks of its threads


class Line(NamedTuple):
    """An event, the step that it belongs to, and a number or text."""

    what: str
    step: int
    detail: str


class Journal:
    """Writes lines to a file that outlives the worker."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, what: str, step: int, detail: object = "") -> None:
        """Add a line, which survives a kill right afterwards. Any thread may call this."""
        text = str(detail).replace("\n", " ")
        os.write(self._fd, f"{what}\t{step}\t{text}\n".encode())
        os.fsync(self._fd)


@contextmanager
def writing(path: str) -> Iterator[Journal]:
    """Open a new, empty journal for writing."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        yield Journal(fd)
    finally:
        os.close(fd)


@contextmanager
def telling(path: str) -> Iterator[Journal]:
    """Open a journal for a worker: its error is the last line; `path`.stacks has stuck threads."""
    with writing(path) as lines, open(f"{path}.stacks", "w") as stacks:
        faulthandler.dump_traceback_later(STUCK_SECONDS, file=stacks)
        try:
            yield lines
        except BaseException as e:
            lines.write("error", 0, f"{type(e).__name__}: {e}")
            raise


def read_journal(path: Path) -> list[Line]:
    """Return the complete lines of a journal; [] if the worker died before it created one."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    lines = [line.split("\t") for line in whole.splitlines()]
    return [Line(what, int(step), detail) for what, step, detail in lines]
