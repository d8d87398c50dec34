"""Reading again what a save has replaced meanwhile: one rule, with one limit, for all readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cordwood.errors import CordwoodError

MAX_ATTEMPTS = 100  # each is ended by a save that came meanwhile; more would be another fault

_T = TypeVar("_T")


def retry_reading(
    read: Callable[[], _T],
    was_replaced: Callable[[], bool],
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = CordwoodError,
) -> _T:
    """Return what `read` returns; call it again if it fails because a save came meanwhile.

    Args:
        read: opens and reads all anew at each call.
        was_replaced: called after an error; returns True if what was read is no longer current,
            so that this explains the error.
        errors: the errors that a save may explain.

    Raises what `read` raises: at once for another reason, and after MAX_ATTEMPTS for this one.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return read()
        except errors:
            if not was_replaced():
                raise
    return read()
