"""The checkpoint that `force=True` replaces, and what it refuses to replace: runs and files."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Sequence

from cordwood.errors import IncompleteCheckpointError, NotACheckpointError
from cordwood.formats.place import place_at
from cordwood.formats.step_names import sorted_steps
from cordwood.formats.table import DEFAULT, ZARR_TREE, by_name
from cordwood.loading.detect_checkpoint import Detected, detect_checkpoint
from cordwood.message_text import counted, listed
from cordwood.removing.newer_versions import require_no_newer_version
from cordwood.removing.remove_checkpoint import plan_removal
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import is_link, path_exists
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.staging.exchange_directories import recover_exchanged
from cordwood.threads.run_in_worker import run_in_worker


def checkpoint_to_replace(location: Location, *, force: bool) -> Listing | None:
    """Return the files of a checkpoint of another tool at a location, which a save is to replace.

    None if nothing is there, or what any save replaces or refuses by itself.

    Raises:
        ValueError: there is something, and `force` is False.
        NotACheckpointError: there is a run, a single file, or no checkpoint.
        StepError: there is a version of weights that a newer one needs.
    """
    if isinstance(location, LocalPath):
        run_in_worker(lambda: recover_exchanged(location))
        if not path_exists(location):
            return None
        if not force:
            raise _exists_error(location)
        if is_link(location):
            return plan_removal(str(location)).listing  # raises
    try:
        detected = detect_checkpoint(location)
    except FileNotFoundError:
        return None
    except IncompleteCheckpointError:  # an empty directory, or what a killed save has left
        detected = None
    if not force:
        raise _exists_error(location)
    if detected is None:
        return None
    _require_one_directory(location, detected)
    if detected.format == DEFAULT.name:
        run_in_worker(lambda: require_no_newer_version(location))
        return None
    return plan_removal(str(location)).listing


def _exists_error(location: Location) -> ValueError:
    return ValueError(f"Destination {location} already exists.")


def _require_one_directory(location: Location, detected: Detected) -> None:
    """Raise NotACheckpointError for a run, and for a checkpoint that is a single file."""
    command = shlex.join(["cordwood", "rm", str(location)])
    steps = _steps(location, detected)
    if steps:
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is a run with {counted(len(steps), 'step')} ({listed(steps)}), and a checkpoint "
            f"in its place would remove all of them. Save to a step of it, {location}/STEP, or to "
            f"another path; `{command}` removes the run. Nothing was changed",
            str(location),
        )
    format = by_name(detected.format)
    if format is not None and not format.is_directory:
        is_local = isinstance(location, LocalPath)  # `rm` takes what lies below a URL
        removal = f", or remove the file first by `{command}`" if is_local else ""
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is {detected.description}, and what is saved here is a directory, which replaces "
            f"no file: save to another path{removal}",
            str(location),
        )


def _steps(location: Location, detected: Detected) -> Sequence[str]:
    """Return the names of the steps in a run, or in what may as well be one as a tree."""
    if detected.format == ZARR_TREE.name:
        return sorted_steps(place_at(location).folders)  # the items of a list, or steps from 0 on
    return detected.steps
