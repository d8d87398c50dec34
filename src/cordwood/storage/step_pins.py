"""Pins of steps: a locked file in the directory of a step, which keeps managers from deleting it.

It looks like a temporary index file of a running save: so deletions see it as one, and what a
killed process has left of it is removed as one. An object store has no locks, and so no pins.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from cordwood.errors import UnsupportedFormatError
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile
from cordwood.storage.locations import Location
from cordwood.storage.locks.file_locks import NO_LOCK_ERRORS, unlock
from cordwood.storage.paths import temporary_path
from cordwood.threads.run_in_worker import run_in_worker


@contextmanager
def pin_directory(
    path: str, index_name: str, *, root_lock: AbstractContextManager[None]
) -> Iterator[None]:
    """Pin the step in a local directory during the block.

    Args:
        path: the directory of the step.
        index_name: the name of its index.
        root_lock: holds the lock of the root, under which steps are deleted.

    Raises FileNotFoundError if there is no such directory, UnsupportedFormatError if there are no
    locks.
    """
    held = WritableFile(temporary_path(path, index_name))

    def take() -> None:
        with root_lock:
            held.open()
            try:
                syscalls.current().flock(held.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process tests if it belongs to a running save
                held.lock()
            except OSError as e:
                if e.errno not in NO_LOCK_ERRORS:
                    raise
                raise UnsupportedFormatError(
                    f"{path}: the file system has no locks to pin a step by "
                    f"({os.strerror(e.errno)}): copy it, or keep it by a policy"
                ) from e

    def release() -> None:
        held.remove()
        unlock(held.fd)

    try:
        run_in_worker(take)
        yield
    finally:
        if held.fd >= 0:
            run_in_worker(release)


def no_pins_error(location: Location) -> UnsupportedFormatError:
    """Return the error for a pin in an object store."""
    return UnsupportedFormatError(
        f"{location}: there are no locks in an object store to pin a step by: copy it, or keep it "
        "by a policy"
    )
