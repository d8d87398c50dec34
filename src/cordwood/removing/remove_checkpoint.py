"""The inside of `cordwood rm`: the plan of a removal, which is shown, and the removal.

Everything at the path has to belong to the checkpoint, or to the run. Otherwise nothing is removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import CordwoodError, NotACheckpointError, UnsupportedFormatError
from cordwood.formats.load_format import foreign_files, storage_of
from cordwood.formats.table import DEFAULT
from cordwood.loading.detect_checkpoint import detect_checkpoint
from cordwood.message_text import first_names
from cordwood.removing.files_of_run import belongs_to_run
from cordwood.removing.links_of_checkpoints import foreign_links
from cordwood.removing.newer_versions import require_no_newer_version
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.paths import is_link, kind_at, parent_and_name, real_path
from cordwood.storage.removal.killed_removals import (
    confirmed_removals,
    files_of_killed_removals,
    finish_removals,
    undo_removals,
)
from cordwood.storage.removal.list_tree import Listing, list_tree
from cordwood.storage.removal.listed_removal import remove_listed
from cordwood.threads.run_in_worker import run_in_worker

_MAX_SHOWN = 3
_UNFINISHED = "an unfinished save of cordwood"
_KILLED, _LEFT = "removed", "what a killed removal has left"  # the format, and its description


class RemovalPlan(NamedTuple):
    """The plan of a removal: one checkpoint, or a run with all of its steps.

    Attributes:
        location: the path or URL.
        format: as `detect` returns it; "steps" for a run, "" for an unfinished save, "removed"
            for what a killed removal has left.
        description: the format in words.
        steps: the names of the steps of a run; () for one checkpoint.
        size_bytes: the size of all files.
        listing: all files and directories.
    """

    location: Location
    format: str
    description: str
    steps: tuple[str, ...]
    size_bytes: int
    listing: Listing


def plan_removal(path: str | os.PathLike[str]) -> RemovalPlan:
    """Return what a removal would remove. Removes nothing.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        NotACheckpointError: it is no checkpoint and no run, is a symbolic link or a mount point, or
            has something inside that is no part of the checkpoint.
        UnsupportedFormatError: it is a file of no known format, or on a web server.
        StepError: it is a version of weights that a newer one needs.
    """
    location = parse_location(path)

    def plan() -> RemovalPlan:
        result = _plan(location)
        require_no_newer_version(location)
        return result

    return run_in_worker(plan)


def remove(plan: RemovalPlan) -> None:
    """Remove what was planned, if it is still the same.

    Raises NotACheckpointError if it has changed, or is in use, and OSError.
    """
    run_in_worker(lambda: _remove(plan))


def _plan(location: Location) -> RemovalPlan:
    if isinstance(location, Url):
        return _plan_of_url(location.plain)
    path = LocalPath(location.text.rstrip("/") or "/")
    if is_link(path):
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is a symbolic link: name {real_path(path)}, to which it leads, or remove "
            "the link itself by rm",
            path.text,
        )
    parent, name = parent_and_name(path.text)
    undo_removals(parent, name=name)
    kind = kind_at(path)
    killed = confirmed_removals(parent, name=name) if kind == "nothing" else {}
    if killed:
        listings = [
            list_tree(f"{parent}/{each}")
            for each in killed
            if kind_at(f"{parent}/{each}") != "nothing"
        ]
        files = {name: size for each in listings for name, size in each.files.items()}
        return RemovalPlan(
            path, _KILLED, _LEFT, (), sum(files.values()), Listing(files, [], [], {})
        )
    if kind == "a file":
        format, description, *_ = detect_checkpoint(path)
        listing = list_tree(path.text)
        return RemovalPlan(path, format, description, (), sum(listing.files.values()), listing)
    if kind == "nothing":
        detect_checkpoint(path)  # raises
    undo_removals(path.text)
    listing = list_tree(path.text)
    others = [*listing.others, *foreign_links(path, listing.links)]
    if others:
        names = first_names([each or "." for each in others], _MAX_SHOWN)
        raise NotACheckpointError(
            errno.EEXIST,
            f"{names}: links, mount points and special files are not removed",
            path.text,
        )
    return _plan_of_directory(path, listing)


def _plan_of_directory(location: Location, listing: Listing) -> RemovalPlan:
    """Return the plan of a directory, or of what lies below a URL."""
    names = [*listing.files, *listing.links]
    size_bytes = sum(listing.files.values())
    try:
        format, description, _, steps = detect_checkpoint(location)
    except (CordwoodError, FileNotFoundError):
        if names and not foreign_files(DEFAULT.name, location, names):
            return RemovalPlan(location, "", _UNFINISHED, (), size_bytes, listing)
        raise
    if format == "steps":
        foreign = _foreign_in_run(location, names, steps)
        steps = tuple([each for each in steps if each not in foreign])
        description = "a run"
    else:
        result = foreign_files(format, location, names)
        if result is None:
            raise UnsupportedFormatError(
                f"{location}: which files belong to {description} is not known: remove it by rm"
            )
        if isinstance(location, Url):  # what killed saves of cordwood that were to replace it left
            result = foreign_files(DEFAULT.name, location, list(result)) or ()
        foreign, steps = list(result), ()
    if foreign:
        advice = "move that away first"
        if format == "steps":
            advice += f", or remove its steps one by one: cordwood rm {location}/STEP"
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is {description}, and holds {first_names(sorted(foreign), _MAX_SHOWN)}, which is "
            f"no part of it; {advice}. Nothing was removed",
            str(location),
        )
    return RemovalPlan(location, format, description, steps, size_bytes, listing)


def _foreign_in_run(root: Location, names: Sequence[str], steps: Sequence[str]) -> list[str]:
    """Return the names in a directory of steps that are neither steps nor cordwood's."""
    foreign = []
    inside: dict[str, list[str]] = {}
    killed = files_of_killed_removals(root.text) if isinstance(root, LocalPath) else set()
    for name in names:
        first, slash, inner = name.partition("/")
        if name not in killed and not belongs_to_run(name):
            inside.setdefault(first, []).append(inner if slash else "")
    for first, files in inside.items():
        if files == [""]:
            is_step = first in steps and _is_checkpoint_file(root.child(first))
            foreign += [] if is_step else [first]
            continue
        if first not in steps:
            foreign.append(first)
            continue
        try:
            format = detect_checkpoint(root.child(first)).format
        except (CordwoodError, OSError):
            format = DEFAULT.name  # unfinished
        result = foreign_files(format, root.child(first), files)
        foreign += [first] if result is None else [f"{first}/{name}" for name in result]
    return foreign


def _is_checkpoint_file(location: Location) -> bool:
    try:
        return detect_checkpoint(location).format != ""
    except (CordwoodError, OSError):
        return False


def _plan_of_url(url: Url) -> RemovalPlan:
    refuse_hub(url)
    if url.is_web:
        raise UnsupportedFormatError(f"{url.address}: {url.scheme}:// can only be read")
    from cordwood.storage.object_stores.list_objects import list_objects
    from cordwood.storage.object_stores.object_store_client import ObjectStore

    objects = list_objects(ObjectStore(url))
    if not objects:
        raise FileNotFoundError(errno.ENOENT, "there is nothing there", url.address)
    files: Mapping[str, int] = {each.name: each.size_bytes for each in objects}
    return _plan_of_directory(
        url, Listing(files, [], [], {each.name: each.tag for each in objects})
    )


def _remove(plan: RemovalPlan) -> None:
    if isinstance(plan.location, Url):
        _remove_objects(plan.location, plan)
        return
    if plan.format == _KILLED:
        parent, name = parent_and_name(plan.location.text)
        finish_removals(parent, name=name)
        return
    is_file = "" in plan.listing.files
    steps = [each for each in plan.steps or ("",) if not is_file]
    remove_listed(plan.location.text, plan.listing, storage_of(DEFAULT).RULES, steps)


def _remove_objects(url: Url, plan: RemovalPlan) -> None:
    from cordwood.storage.object_stores.list_objects import list_objects, object_names
    from cordwood.storage.object_stores.object_step_storage import ObjectStepStorage
    from cordwood.storage.object_stores.object_store_client import ObjectStore

    store = ObjectStore(url)
    stamps = {each.name: each.tag for each in list_objects(store)}
    names = set(stamps)
    if stamps != plan.listing.stamps:
        raise NotACheckpointError(
            f"{url}: it has changed since it was shown, and nothing was removed; try again"
        )
    steps = plan.steps
    if plan.format in ("steps", DEFAULT.name, "") and url.key:
        # A step first loses its index, and objects of the pool go that no other step refers to.
        root, entries = url, list(steps)
        if not steps:
            root, entries = url.parent, [url.name]
        ObjectStepStorage(root, storage_of(DEFAULT).RULES).remove(entries)
    store.delete(sorted(names.intersection(object_names(store))))
