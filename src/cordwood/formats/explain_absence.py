"""The errors for a path without a checkpoint, with what lies there or near it."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from cordwood.did_you_mean import nearest_name
from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.foreign_directories import foreign_directory
from cordwood.formats.list_steps import steps_in
from cordwood.formats.place import Place
from cordwood.formats.step_names import MAX_STEPS_OPENED
from cordwood.formats.suffixes import by_suffix, close_suffix
from cordwood.formats.table import directory_formats
from cordwood.message_text import counted, listed, printable
from cordwood.storage.directories import list_names, scan_directory
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import is_folder, is_link, journal_beside, stale_stages

_MAX_SIBLINGS = 1000  # entries beside a path that are compared with its name


def absence(path: LocalPath) -> OSError:
    """Return the error for a path with nothing there: an unfinished save, or a similar name."""
    stages = stale_stages(path)
    if stages:
        return IncompleteCheckpointError(
            f"{path}: a save to this path has not finished; it left {Path(stages[-1]).name} "
            "beside it: wait if it is still running; otherwise load an earlier checkpoint, or save "
            "again"
        )
    if is_link(path):
        what = "there is no checkpoint where this symbolic link leads"
        return FileNotFoundError(errno.ENOENT, what, path.text)
    parent = Path(path).parent
    if not is_folder(parent):
        what = f"there is no checkpoint, as there is no directory {os.fspath(parent)!r}"
        return FileNotFoundError(errno.ENOENT, what, path.text)
    name = Path(path).name
    siblings = [entry.name for entry in scan_directory(os.fspath(parent))[:_MAX_SIBLINGS]]
    # It may have come just now.
    close = nearest_name(name, [each for each in siblings if each != name])
    steps = steps_in(Place(LocalPath(str(parent)))) if name == "latest" else []
    if steps:
        hint = printable(f" (no step is complete; the newest is {_newest(parent, steps)})")
    elif close is not None:
        hint = printable(f" (did you mean {os.fspath(parent / close)}?)")
    else:
        suffix = close_suffix(path.text)
        hint = f" (did you mean one that ends in {suffix}?)" if suffix else ""
    return FileNotFoundError(errno.ENOENT, f"there is no checkpoint{hint}", path.text)


def not_a_checkpoint(place: LocalPath, text: str) -> OSError | IncompleteCheckpointError:
    """Return the error for a directory without an index; `text` is what the caller calls it."""
    steps = steps_in(Place(place))
    if steps:
        return IncompleteCheckpointError(
            f"{text} is a directory of {counted(len(steps), 'step')} ({listed(steps)}), not "
            f"a checkpoint: load one of them; the newest is {_newest(Path(place), steps)}; "
            f"`cordwood steps {shlex.quote(text)}` lists all"
        )
    names = list_names(place.text)
    if not names and not is_folder(place):  # it has just been removed
        return absence(LocalPath(text))
    if not names:
        return IncompleteCheckpointError(
            f"{text} is an empty directory: expected a directory with an index, or a checkpoint "
            "file"
        )
    foreign = foreign_directory(text, names)
    if foreign is not None:
        return IncompleteCheckpointError(
            f"{text} is not a checkpoint that is read: it is {foreign}"
        )
    from cordwood.formats.packs.cordwood_json import INDEX_NAME
    from cordwood.formats.packs.file_names import PACK_NAME

    files = [name for name in names if by_suffix(name) is not None]
    advice = ""
    if is_folder(journal_beside(place)):
        return IncompleteCheckpointError(
            f"{text} has no {INDEX_NAME} yet: a convert or copy in parts has begun to write it; "
            "once its parts have ended, the same call without part= (--part) writes what is "
            "missing, and the index"
        )
    if any(map(PACK_NAME.fullmatch, names)):
        advice = (
            "; wait if a save to it is still running; otherwise load another checkpoint, or save "
            f"again (if {INDEX_NAME} was removed: restore a copy)"
        )
    elif files:
        advice = f"; one of its files can be loaded by itself: {Path(place) / files[0]}"
    indexes = " or ".join([each.index_name for each in directory_formats()])
    return IncompleteCheckpointError(
        f"{text} is not a checkpoint, or no save to it has finished: it contains {listed(names)}, "
        f"and no index ({indexes}){advice}"
    )


def _newest(place: Path, steps: Sequence[str]) -> Path:
    """Return the newest step that is a checkpoint, as far as can be told; else the newest."""
    for name in reversed(steps[-MAX_STEPS_OPENED:]):
        child = place / name
        if not is_folder(child) or format_in(Place(LocalPath(str(child)))) is not None:
            return child
    return place / steps[-1]
