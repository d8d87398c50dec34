"""Another attempt to open a file that another machine has just replaced on a file server.

NFS then answers ESTALE: the name led to a file that was removed. Opening the name again leads
to the file that has replaced it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

MAX_ATTEMPTS = 20  # each is ended by another machine that replaced the file just then
_PAUSE_SECONDS = 0.01


def retry_stale(call: Callable[[], _T]) -> _T:
    """Return what `call` returns; call it again, a limited number of times, after ESTALE."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return call()
        except OSError as e:
            if e.errno != errno.ESTALE:
                raise
        time.sleep(_PAUSE_SECONDS)
    return call()
