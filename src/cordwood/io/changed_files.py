"""The guard against files that another program changes while they are open for reading.

The state of a file is noted when it is opened, and compared after each read. A difference means
that what was read may be a mixture of two files, or that an index that was read before does not
belong to the bytes that are there. It cannot be noticed that a file was being rewritten already
when it was opened, nor that a program writes through a mapping: the kernel sets the time of such
writes only now and then.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import NamedTuple

from cordwood.errors import FileChangedError

_CLOCK_REALTIME_COARSE = 5  # Linux: the clock of time stamps of files, which advances in ticks
_POLL_SECONDS = 0.001
_MAX_POLLS = 20  # a tick takes 1 to 10 ms


class FileState(NamedTuple):
    """The properties of a file that every later write changes."""

    size_bytes: int
    modified_ns: int


def file_state(fd: int) -> FileState:
    """Return the state of an open file.

    Waits for the next tick of the kernel's clock, some milliseconds, if the file was written during
    this one: another write during the same tick would leave its time stamp as it is.
    """
    for _ in range(_MAX_POLLS):
        status = os.fstat(fd)
        if not 0 <= status.st_mtime_ns - _coarse_time_ns() < 1_000_000_000:
            break  # it is older, or far in the future: of another machine's clock
        time.sleep(_POLL_SECONDS)
    return FileState(status.st_size, status.st_mtime_ns)


def _coarse_time_ns() -> int:
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else 1 << 62


def require_unchanged(fd: int, state: FileState, name: str) -> None:
    """Raise FileChangedError unless an open file is in the state that was noted before."""
    try:
        status = os.fstat(fd)
    except OSError as e:
        raise stale_error(e, name) from e
    if status.st_mtime_ns != state.modified_ns or status.st_size != state.size_bytes:
        raise FileChangedError(
            f"{name} has changed since it was opened: another program has written to it in place; "
            "open it again, once that program is done"
        )


def stale_error(error: OSError, name: str) -> OSError:
    """Return the error of an open file, with advice if it was removed on the file server."""
    if error.errno != errno.ESTALE or isinstance(error, FileChangedError):
        return error
    stale = FileChangedError(
        f"{name} has changed since it was opened: another machine has removed or replaced it; open "
        "it again"
    )
    stale.errno = errno.ESTALE
    return stale
