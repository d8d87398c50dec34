"""Reading again from the next holder of a file, where what was read does not match its digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cordwood.errors import CorruptionError
from cordwood.io.open_files import ReadableFile

_T = TypeVar("_T")


def read_from_holders(file: ReadableFile, read: Callable[[], _T]) -> _T:
    """Return what `read` returns, which reads a file and checks what it has read.

    If it raises CorruptionError, it is called again as long as the file has another holder.
    """
    while True:
        try:
            return read()
        except CorruptionError as e:
            if not file.distrust(e):
                raise
