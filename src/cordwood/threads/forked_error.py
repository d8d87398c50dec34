"""The error for what belongs to the process from which this one was forked."""

from __future__ import annotations

import errno

from cordwood.errors import StorageError


def forked_error(what: str, process: int) -> StorageError:
    """Return the error for what belongs to the process from which this one was forked."""
    return StorageError(
        errno.ENOTSUP,
        f"{what} belongs to process {process}, from which this one was forked: its threads are not "
        "here. Let that process save and wait; or save, load or make another CheckpointManager "
        "in this one",
    )
