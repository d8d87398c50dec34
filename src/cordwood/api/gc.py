"""gc: remove files that interrupted saves have left in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.formats.detect_directory import written_format
from cordwood.formats.load_format import collector_of, storage_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import step_in_name
from cordwood.formats.table import DEFAULT
from cordwood.storage.directories import scan_directory
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.paths import is_folder, locate_directory, parent_and_name
from cordwood.storage.removal.killed_removals import finish_removals
from cordwood.storage.staging.collect_stages import collect_stages, collect_stages_of_packs
from cordwood.threads.run_in_worker import run_in_worker


class GcReport(list[str]):
    """The paths that `gc` removed, or with `dry_run` would remove: a list.

    Attributes:
        rewritten: the paths of files beside an index that a save had not brought in line with it
            when it was killed, and that `gc` wrote again, or with `dry_run` would write.
        young_files: how many files it left because they may be of a running save. Object stores
            have no locks, so there the age alone tells; on disks it is always 0.
        young_bytes: their size.
        young_until: from when on `gc` removes all of them, unless an index refers to them by then;
            in seconds since 1970. None if there are none.
    """

    def __init__(
        self,
        paths: Iterable[str] = (),
        *,
        rewritten: Iterable[str] = (),
        young_files: int = 0,
        young_bytes: int = 0,
        young_until: float | None = None,
    ) -> None:
        super().__init__(paths)
        self.rewritten = list(rewritten)
        self.young_files = young_files
        self.young_bytes = young_bytes
        self.young_until = young_until


def gc(path: str | os.PathLike[str], *, dry_run: bool = False) -> GcReport:
    """Remove the files that interrupted saves of a directory have left in it or beside it.

    Of a run, also those in its unfinished steps, and empty directories with names of steps. What a
    killed `cordwood rm` has left in it, or of it, is removed too, or gets its name again if its
    removal had not begun. No saved tree is affected. On disks the next save of the directory does
    the same. Files of saves that are in progress stay, and so do files that are not cordwood's.
    Object stores have no locks that show whether a save is alive. There, only this function removes
    such files, and only those that were written more than 24 hours ago; the result says how many
    younger ones there are. If the save of a removed file is alive after all, it fails, and the
    previous checkpoint stays.

    A save that was killed at its very end may have left the `model.safetensors.index.json` of the
    save before, or no index for Orbax (`orbax=`). They are written again first, for those who read
    them.

    Args:
        path: the directory of a checkpoint or a run, or its URL.
        dry_run: True removes nothing, and only returns the paths.

    Returns:
        The paths that were removed, or with `dry_run` would be: a list, which also has the number
        and the size of the files that were left.

    Raises:
        FileNotFoundError: there is no directory at `path`.
        CorruptionError, FormatError: its index cannot be read, so nothing is removed.
        UnsupportedFormatError: `path` is a URL of a web server.

    >>> from cordwood import save
    >>> save("step-7", {"w": 1.5})
    >>> gc("step-7")
    []
    """
    return run_in_worker(lambda: _collect(parse_location(path), dry_run=dry_run))


def _collect(location: Location, *, dry_run: bool) -> GcReport:
    refuse_hub(location)
    rewritten: list[str] = []
    if isinstance(location, Url):
        if location.is_web:
            raise UnsupportedFormatError(
                f"{location.address}: {location.scheme}:// can only be read, so there is nothing "
                "to remove; expected a path, or a URL of s3://, gs:// or az://"
            )
        format = DEFAULT
        beside: list[str] = []
    else:
        parent, name = parent_and_name(location.text)
        beside = collect_stages(location, dry_run=dry_run)
        beside += finish_removals(parent, name=name, dry_run=dry_run)
        beside += finish_removals(location.text, dry_run=dry_run)
        if not is_folder(location) and (beside or locate_directory(location) != location.text):
            return GcReport(beside)  # left before the first save had ended, or between two renames
        written = written_format(Place(location))
        if written is None:
            beside += _collect_unfinished_steps(location, dry_run=dry_run)
            rewritten = _rewrite_in_steps(location, dry_run=dry_run)
        format = written or DEFAULT
    if not format.collector:
        return GcReport(beside)
    garbage = collector_of(format).collect(location, dry_run=dry_run)
    folder = str(location).rstrip("/")
    return GcReport(
        [f"{folder}/{name}" for name in garbage.names] + beside,
        rewritten=[f"{folder}/{name}" for name in garbage.rewritten] + rewritten,
        young_files=garbage.young_files,
        young_bytes=garbage.young_bytes,
        young_until=garbage.young_until,
    )


def _collect_unfinished_steps(root: LocalPath, *, dry_run: bool) -> list[str]:
    """Remove what killed saves have left in steps of a local run that have no index; return paths.

    The next save of a manager does the same, but it leaves empty directories: Orbax takes one that
    is named by a number for its newest step, a manager of cordwood does not.
    """
    rules = storage_of(DEFAULT).RULES
    storage = open_step_storage(root, rules)
    removed = collect_stages_of_packs(str(root), rules.is_data_file, dry_run=dry_run)
    for name, entry in storage.entries(lambda name: step_in_name(name) is not None).items():
        if entry.stamp is not None or entry.is_link or entry.is_file:
            continue
        path = root.child(name)
        if not scan_directory(path.text):  # left by a save that was killed before its first file
            removed.append(str(path))
            if not dry_run:
                storage.remove_empty(name)
        if not storage.has_leftovers(name):
            continue
        garbage = collector_of(DEFAULT).collect(path, dry_run=dry_run)
        removed += [f"{path}/{each}" for each in garbage.names]
        if not dry_run:
            storage.remove_empty(name)
    return removed


def _rewrite_in_steps(root: LocalPath, *, dry_run: bool) -> list[str]:
    """Write files beside the indexes of steps that killed saves have not written; return paths."""
    storage = open_step_storage(root, storage_of(DEFAULT).RULES)
    collector = collector_of(DEFAULT)
    rewritten = []
    for name, entry in storage.entries(lambda name: step_in_name(name) is not None).items():
        if entry.stamp is None or entry.is_link:
            continue
        path = root.child(name)
        with suppress(CordwoodError, OSError):  # `verify` reports a damaged step
            if collector.stale_files(path):
                garbage = collector.collect(path, dry_run=dry_run)
                rewritten += [f"{path}/{each}" for each in garbage.rewritten]
    return rewritten
