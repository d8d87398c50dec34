"""The directories in which Orbax keeps the steps of a run, and saves that have not ended there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.orbax.orbax_directory import inspect_checkpoint, inspect_place
from cordwood.formats.orbax.unfinished_saves import is_unfinished_directory
from cordwood.formats.orbax.unfinished_saves import is_unfinished_name as is_unfinished_name
from cordwood.formats.place import Place
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath


def is_at(place: Place) -> bool:
    """Return whether Orbax wrote a directory: a checkpoint, steps, or an unfinished save."""
    return is_unfinished_directory(place) or inspect_place(place).is_orbax


def steps_at(place: Place) -> Sequence[str]:
    """Return the steps in a root directory of a run, the newest last; () for other directories."""
    return inspect_place(place).steps


def is_unfinished_at(place: Place) -> bool:
    """Return whether a directory is a checkpoint whose save did not end."""
    if is_unfinished_directory(place):
        return True
    with suppress(FileNotFoundError, NotADirectoryError), place.opened() as directory:
        return not inspect_checkpoint(directory).committed
    return False


def refuse_unfinished(path: LocalPath) -> None:
    """Raise IncompleteCheckpointError if there is only an unfinished save of a path."""
    try:
        with LocalDirectory(path.parent) as above:
            sizes = above.sizes(".")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for each in sorted(sizes):
        if each.startswith(f"{path.name}.") and is_unfinished_name(each):
            raise IncompleteCheckpointError(
                f"{path}: Orbax did not finish this save, and left {each}; load an "
                "earlier step, or save again"
            )
