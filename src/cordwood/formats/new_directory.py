"""A directory that one save makes anew, for other tools: nothing in it is replaced or added to."""

from __future__ import annotations

import os
from functools import partial

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.table import Format
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import list_names
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import kind_at
from cordwood.storage.staging.staging_directory import DirectoryChange, StagingDirectory


def require_one_process(format: Format, path: LocalPath, rendezvous: Rendezvous) -> None:
    """Raise UnsupportedFormatError if several processes save together."""
    if rendezvous.count > 1:
        raise UnsupportedFormatError(
            f"{path}: one process writes {format.description}, and there are "
            f'{rendezvous.count}: save with format="packs", and convert that in one process'
        )


def require_vacant(format: Format, path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError unless there is nothing, or an empty directory."""
    what = kind_at(path)
    if what != "nothing" and (what != "a folder" or list_names(os.fspath(path))):
        raise NotACheckpointError(
            f"{os.fspath(path)} exists: {format.description} is not replaced or added to; "
            "remove it, or write to another path"
        )


def put_in_place(format: Format, stage: StagingDirectory) -> None:
    """Commit a staging directory. Raises NotACheckpointError as `require_vacant` does."""
    stage.commit(partial(_require_empty, format))


def _require_empty(format: Format, old: str | None) -> DirectoryChange:
    """Raise NotACheckpointError unless the directory to replace is empty; keep nothing of it."""
    if old is not None:
        require_vacant(format, old)
    return DirectoryChange()
