"""Which layout a directory is in, and where the code for each one is."""

from __future__ import annotations

import errno
import fnmatch
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.did_you_mean import nearest_name
from cordwood.errors import (
    IncompleteCheckpointError,
    NotACheckpointError,
    UnsupportedFormatError,
    counted,
)
from cordwood.formats.file_formats import (
    FORMATS,
    Format,
    close_suffix,
    format_by_suffix,
    format_for,
    format_to_write,
    is_directory_name,
)
from cordwood.formats.sniff import is_records, recognise
from cordwood.formats.step_directories import LOOKED_AT, is_named_step, listed, sorted_steps
from cordwood.message_text import printable
from cordwood.storage.directories import (
    contains_file,
    list_names,
    list_subdirectories,
    scan_directory,
)
from cordwood.storage.open_files import LocalFile
from cordwood.storage.path_kind import blocking_parent, is_folder, is_link, kind_at, path_exists
from cordwood.storage.staging_directory import locate_directory, stale_stages
from cordwood.storage.urls import parse_url


class Layout(NamedTuple):
    """One row of the table."""

    name: str
    # The file that makes a directory a checkpoint of this layout, or a pattern; with **/ before it,
    # it may lie anywhere below.
    index_name: str
    # Which has `open_contents` and `verify_all`, and of a layout that is written `plan_job`,
    # `refuse_foreign` and `collect`. Orbax's says where it is, too: an item may have the index.
    module: str
    description: str
    writable: bool = True


# A row that is written counts before those that are only read; of these the first that fits.
LAYOUTS: Sequence[Layout] = (
    Layout(
        "packs",
        "cordwood.json",
        "cordwood.formats.packs.facade",
        "a directory of safetensors files with cordwood's index",
    ),
    Layout(
        "zarr",
        "tensorstore_index.json",
        "cordwood.formats.zarr.facade",
        "a directory of zarr arrays with eFormer's index",
    ),
    Layout(
        "orbax", "_METADATA", "cordwood.formats.orbax.open", "an Orbax checkpoint", writable=False
    ),
    Layout(
        "safetensors-shards",
        "*.safetensors.index.json",
        "cordwood.formats.hugging_face.open",
        "a directory of safetensors files with the index of Hugging Face",
        writable=False,
    ),
    Layout(
        "safetensors-shards",
        "model.safetensors",
        "cordwood.formats.hugging_face.open",
        "a directory with a model.safetensors, as the Hugging Face hub has it",
        writable=False,
    ),
    Layout(
        "zarr-tree",
        "**/.zarray",
        "cordwood.formats.zarr_tree.open",
        "a directory tree of zarr arrays without an index",
        writable=False,
    ),
)
DEFAULT, ZARR, ORBAX = LAYOUTS[:3]
_BY_NAME: Mapping[str, Layout] = {row.name: row for row in LAYOUTS if row.writable}

_BELOW = "**/"
_SINGLE = "model.safetensors"  # which may lie in a directory of steps as well
_MAX_ENTRIES = 10_000  # that are looked at for an array
_MAX_BESIDE = 1000  # that may have been meant


def destination_for(
    path: str | os.PathLike[str],
    *,
    format: str | None,
    layout: str | None,
    prefix: str | None,
) -> Format | Layout:
    """How a tree is saved at `path`: in a file of some format, or a directory of some layout.

    Raises:
        UnsupportedFormatError: the path's suffix, `format` or `layout` names nothing known.
        NotACheckpointError: there is a checkpoint of another layout, or of another tool.
        ValueError: the arguments contradict each other.
    """
    text = os.fspath(path)
    if parse_url(path) is not None:
        return _in_a_store(text, format=format, layout=layout)
    blocking = blocking_parent(path)
    if blocking is not None:
        raise NotADirectoryError(
            errno.ENOTDIR,
            f"{text} is to be saved below it, and it is no directory; save to another path",
            blocking,
        )
    is_file = any(text.endswith(row.suffix) for row in FORMATS if row.writable)
    if layout is None and format is None and text.endswith("/") and format_by_suffix(text[:-1]):
        raise ValueError(
            f"{text}: the suffix means a file, and the slash at the end a directory: leave one "
            "out, or say layout="
        )
    if layout is not None and (format is not None or is_file):
        what = f"format={format!r}" if format is not None else "a name with the suffix of a file"
        raise ValueError(f"{text}: layout= is for directories, and {what} means a file")
    if layout is None and (format is not None or not is_directory_name(text)):
        if prefix is not None:
            raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")
        row = format_to_write(path, format)
        kind_at(path)
        return row
    if layout is not None and layout not in _BY_NAME:
        known = ", ".join(map(repr, _BY_NAME))
        raise UnsupportedFormatError(f"layout {layout!r} is unknown; expected one of {known}")
    place = Path(locate_directory(path))
    kind_at(place)
    there = layout_at(place)
    if there is None:
        refuse_read_only(place, asked=text)
    if layout is None:
        return there or DEFAULT
    if there is None:
        _refuse_to_hide(place, asked=text)
    elif there.name != layout:
        raise NotACheckpointError(
            f"{text} is a checkpoint of the layout {there.name!r}: save with layout="
            f"{there.name!r}, remove it, or save to another path"
        )
    return _BY_NAME[layout]


def _refuse_to_hide(place: Path, *, asked: str) -> None:
    """Raise NotACheckpointError for a checkpoint that an index beside it would replace or hide."""
    row = layout_to_read(place) if is_folder(place) else None
    if row is not None and not row.writable:  # one that is written has come meanwhile
        raise NotACheckpointError(
            f"{asked} is {row.description}, which cordwood only reads: remove it, or save to "
            "another path"
        )


def refuse_read_only(place: str | os.PathLike[str], *, asked: str) -> None:
    """Raise NotACheckpointError for a directory with what Orbax has written.

    `asked` is the path that the caller gave.
    """
    if module_of(ORBAX).is_at(place):
        raise NotACheckpointError(
            f"{asked} holds what Orbax has written, which cordwood only reads: remove it, or save "
            "to another path"
        )


def origin_of(
    path: str | os.PathLike[str], *, format: str | None, prefix: str | None
) -> Format | Layout:
    """Return how what lies at `path` is to be read.

    Raises:
        ValueError: a prefix is asked for, and it is a file.
        UnsupportedFormatError: it is a file of no known format.
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: it is a directory without an index, perhaps one of steps, or what
            a save that did not finish was to become.
        NotACheckpointError: it is a directory with several.
    """
    text = os.fspath(path)
    if parse_url(path) is not None:
        return _in_a_store(text, format=format, layout=None)
    place = Path(locate_directory(path))
    what = kind_at(place)
    if format is None and what == "a folder":
        there = layout_to_read(place)
        if there is None:
            raise not_a_checkpoint(place, text)
        return there
    if prefix is not None and what != "nothing":
        raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")
    if what == "nothing":
        if format is not None:
            format_for(path, format)
        module_of(ORBAX).refuse_unfinished(place)
        raise absence(text)
    if format is None and format_by_suffix(text) is None and what == "a file":
        with LocalFile(place) as file:
            return recognise(file)
    row = format_for(path, format)
    if format is None and row.name == "msgpack" and what == "a file":
        with LocalFile(place) as file:
            return format_for(path, "msgpack-records") if is_records(file) else row
    return row


def absence(path: str) -> OSError:
    """What to say where there is nothing: of a save that did not finish, or what lies beside."""
    stages = stale_stages(path)
    if stages:
        return IncompleteCheckpointError(
            f"{path}: a save to it has not finished, and has left {Path(stages[-1]).name} "
            "beside it: wait if it still runs; else load an earlier checkpoint, or save again"
        )
    if is_link(path):
        what = "there is no checkpoint where this symbolic link leads"
        return FileNotFoundError(errno.ENOENT, what, path)
    parent = Path(path).parent
    if not is_folder(parent):
        what = f"there is no checkpoint, as there is no directory {os.fspath(parent)!r}"
        return FileNotFoundError(errno.ENOENT, what, path)
    name = Path(path).name
    beside = [entry.name for entry in scan_directory(os.fspath(parent))[:_MAX_BESIDE]]
    close = nearest_name(
        name, [each for each in beside if each != name]
    )  # it may have come just now
    if close is not None:
        hint = printable(f" (did you mean {os.fspath(parent / close)}?)")
    else:
        suffix = close_suffix(path)
        hint = f" (did you mean one that ends in {suffix}?)" if suffix else ""
    return FileNotFoundError(errno.ENOENT, f"there is no checkpoint{hint}", path)


def not_a_checkpoint(place: Path, text: str) -> IncompleteCheckpointError:
    """What to say of a directory without an index; `text` is what the caller calls it."""
    steps = steps_at(place)
    if steps:
        return IncompleteCheckpointError(
            f"{text} is a directory of {counted(len(steps), 'step')} ({listed(steps)}), and no "
            f"checkpoint itself: load one of them; the newest is {place / _newest(place, steps)}"
        )
    names = list_names(str(place))
    if not names:
        return IncompleteCheckpointError(
            f"{text} is an empty directory: expected a checkpoint, or the file of one"
        )
    files = [name for name in names if format_by_suffix(name) is not None]
    advice = f"; a file of it can be loaded alone: {place / files[0]}" if files else ""
    return IncompleteCheckpointError(
        f"{text} has no {' or '.join(row.index_name for row in LAYOUTS)}: no save to it has "
        f"finished, or it is no checkpoint; found {listed(names)}{advice}"
    )


def steps_at(place: Path, *, known: Sequence[str] | None = None) -> list[str]:
    """The names of the checkpoints of single steps in a directory, the oldest first.

    `known` are those of Orbax's, where the caller has looked for them.
    """
    if known is None:
        known = module_of(ORBAX).steps_at(place)
    folders = list_subdirectories(str(place))
    # A file whose name is a number is a chunk of an array.
    likely = [name for name in list_names(str(place)) if name in folders or is_named_step(name)]
    return sorted_steps(likely, known=known)


def _newest(place: Path, steps: Sequence[str]) -> str:
    """The last that is a checkpoint, as far as can be told; the last, where none can."""
    for name in reversed(steps[-LOOKED_AT:]):
        child = place / name
        if not is_folder(child) or layout_to_read(child) is not None:
            return name
    return steps[-1]


def _in_a_store(text: str, *, format: str | None, layout: str | None) -> Layout:
    """Packs: what needs neither renames nor files that grow."""
    if format is not None or not is_directory_name(text):
        raise UnsupportedFormatError(
            f"{text}: an object store holds directories, and this means a file; leave the suffix "
            "out, or use a local path"
        )
    if layout not in (None, DEFAULT.name):
        raise UnsupportedFormatError(
            f"{text}: the layout {layout!r} needs a local path; an object store holds "
            f"{DEFAULT.name!r}"
        )
    return DEFAULT


def layout_at(path: str | os.PathLike[str]) -> Layout | None:
    """The layout of the checkpoint in a local directory, of those that are written; or None.

    Raises NotACheckpointError where there are indexes of several.
    """
    found = [row for row in _BY_NAME.values() if path_exists(Path(path) / row.index_name)]
    if len(found) > 1:
        names = " and ".join(row.index_name for row in found)
        raise NotACheckpointError(
            f"{os.fspath(path)} has both {names}: remove the one that is not meant"
        )
    return found[0] if found else None


def layout_to_read(place: Path) -> Layout | None:
    """Return the layout of a local directory, of all; None: it has none. Raises as `layout_at`."""
    found = by_index(place)
    if found is not None or _is_of_steps(place):
        return found
    for row in LAYOUTS:
        name = row.index_name.removeprefix(_BELOW)
        if name == _SINGLE and path_exists(place / name):
            return row
        if name != row.index_name and contains_file(str(place), name, at_most=_MAX_ENTRIES):
            return row
    return None


def by_index(place: Path) -> Layout | None:
    """Return the layout whose index lies in the directory itself."""
    written = layout_at(place)
    if written is not None:
        return written
    names = list_names(str(place))
    for row in LAYOUTS:
        if row.writable or row.index_name == _SINGLE:
            continue
        if fnmatch.filter(names, row.index_name):
            return row
    return ORBAX if module_of(ORBAX).is_checkpoint_at(place) else None


def _is_of_steps(place: Path) -> bool:
    """Whether the directories in one are steps, and not the keys of a tree.

    Those that are called by a number alone are a list's, if they count from 0 on.
    """
    known = module_of(ORBAX).steps_at(place)
    steps = steps_at(place, known=known)
    if any(map(is_named_step, steps)) or known:
        return True
    folders = list_subdirectories(str(place))
    if all(map(str.isdecimal, steps)) and steps and sorted(steps) == sorted(folders):
        return sorted(map(int, steps)) != list(range(len(steps))) or any(
            by_index(place / name) is not None for name in steps[-LOOKED_AT:]
        )
    return False


def module_of(row: Layout) -> Any:
    """The functions of a layout."""
    return importlib.import_module(row.module)
