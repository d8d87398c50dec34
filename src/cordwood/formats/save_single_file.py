"""The saving of formats of one file, what they have in common."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import CordwoodError, FileChangedError, NotACheckpointError
from cordwood.formats.foreign_files import foreign_file
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.plan.file_plan import FilePlan
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import is_empty_file, kind_at
from cordwood.storage.write_files import write_file

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous


class SingleFileSave(NamedTuple):
    """A planned save of a tree as one file."""

    path: LocalPath
    plan: FilePlan
    page_cache: bool


def write_single_file(save: SingleFileSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the file, which is all that a save does; see `Writer.write`."""
    del rendezvous
    write_file(save.path, save.plan, leaves, page_cache=save.page_cache)


def refuse_foreign_file(
    path: LocalPath, require: Callable[[ReadableFile], object], *, name: str
) -> None:
    """Raise if `path` is something that a save would destroy and could not have written.

    Args:
        path: the destination of the save.
        require: raises CordwoodError unless a file is of the format, by the least reading that
            tells. Damage further in the file is no reason to keep it.
        name: the name of the format.
    """
    what = kind_at(path)
    if what == "a folder":
        raise IsADirectoryError(
            errno.EISDIR, f"a {name} checkpoint is one file, and this is a directory", str(path)
        )
    if what == "nothing" or is_empty_file(path):
        return
    try:
        with LocalFile(path) as file:
            require(file)
    except FileChangedError:
        raise
    except CordwoodError as e:
        with LocalFile(path) as file:
            kind = foreign_file(file)
        raise NotACheckpointError(
            f"{path} exists and is not a {name} checkpoint "
            f"({e if kind is None else f'it is {kind}'}); remove it, or save to another path"
        ) from e
