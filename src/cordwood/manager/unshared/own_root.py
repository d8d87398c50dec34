"""The check that a root can belong to one process alone."""

from __future__ import annotations

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.step_storage import StepStorage


def require_own_root(storage: StepStorage, *, orbax: bool | str) -> LocalStepStorage:
    """Return the storage of a root that one process has for itself.

    Raises:
        UnsupportedFormatError: it is a URL, which all processes share.
        ValueError: `orbax` asks for steps that Orbax reads.
    """
    if not isinstance(storage, LocalStepStorage):
        raise UnsupportedFormatError(
            f"{storage.location}: shared=False is for directories, one for each process; a URL is "
            "the same place for all: leave out shared=False, or pass the URL as the mirror: "
            f"mirror=Mirror({str(storage.location)!r})"
        )
    if orbax is not False:
        raise ValueError(
            "orbax= is for a root that all processes share: with shared=False no root holds all "
            "files of a step, and Orbax reads no other roots; leave out orbax=, and add an index "
            "for Orbax to a copy in a mirror (cordwood index --orbax)"
        )
    return storage
