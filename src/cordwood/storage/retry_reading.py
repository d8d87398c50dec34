"""Another attempt to read a checkpoint that a save has replaced meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

# Reading again what a save has replaced meanwhile: one rule, with one limit, for all readers

MAX_ATTEMPTS = 100  # each is ended by a save that came meanwhile; more would be another fault

_T = TypeVar("_T")


class ReplacedError(Exception):
    """An error that another save explains: it has replaced what was read meanwhile."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def retry_reading(read: Callable[[], _T]) -> _T:
    """Return what `read` returns; call it again if a save has replaced what it reads.

    Args:
        read: opens and reads all anew at each call. It raises ReplacedError for an error that a
            save explains.

    Raises what `read` raises, and the error in its ReplacedError after MAX_ATTEMPTS.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return read()
        except ReplacedError:
            pass
    try:
        return read()
    except ReplacedError as e:
        raise e.error from None
