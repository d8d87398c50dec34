"""Which layout a directory is in, and where the code for each one is."""

from __future__ import annotations

import difflib
import errno
import fnmatch
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.api.formats import FORMATS, Format, format_for, format_to_write
from cordwood.engine.stage import standing
from cordwood.engine.urls import parse_url
from cordwood.errors import (
    IncompleteCheckpointError,
    NotACheckpointError,
    UnsupportedFormatError,
)

__all__ = [
    "DEFAULT",
    "LAYOUTS",
    "READ_ONLY",
    "ZARR",
    "Layout",
    "destination_for",
    "is_directory_name",
    "layout_at",
    "module_of",
    "origin_of",
    "refuse_read_only",
]


class Layout(NamedTuple):
    """One row of the table."""

    name: str
    index_name: str  # the file that makes a directory a checkpoint of this layout, or a pattern
    # Which has `open_contents` and `verify_all`, and of a layout that is written `plan_job`,
    # `refuse_foreign` and `collect`.
    module: str
    description: str
    writable: bool = True


# A row that is written counts before those that are only read; of these the first that fits.
LAYOUTS: Sequence[Layout] = (
    Layout(
        "packs",
        "cordwood.json",
        "cordwood.api.packs",
        "a directory of safetensors files with cordwood's index",
    ),
    Layout(
        "zarr",
        "tensorstore_index.json",
        "cordwood.api.zarr",
        "a directory of zarr arrays with eFormer's index",
    ),
    Layout(
        "safetensors-shards",
        "*.safetensors.index.json",
        "cordwood.api.open_shards",
        "a directory of safetensors files with the index of Hugging Face",
        writable=False,
    ),
)
DEFAULT, ZARR = LAYOUTS[:2]

# What other tools write, and no save goes into. The module has `is_at`, `open_contents`,
# `verify_all` and `refuse_unfinished`.
READ_ONLY: Sequence[Layout] = (
    Layout("orbax", "_METADATA", "cordwood.api.orbax", "an Orbax checkpoint", writable=False),
)
_BY_NAME: Mapping[str, Layout] = {row.name: row for row in LAYOUTS if row.writable}

# Suffixes of files that others write: a directory of such a name would be a mistake.
_FILE_SUFFIXES = frozenset(
    {
        *(".bin", ".eqx", ".gguf", ".gz", ".h5", ".hdf5", ".json", ".npy", ".npz", ".onnx"),
        *(".pickle", ".pkl", ".pt", ".pth", ".tar", ".zarr", ".zip", ".zst"),
    }
)


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
    is_file = any(text.endswith(row.suffix) for row in FORMATS if row.writable)
    if layout is not None and (format is not None or is_file):
        what = f"format={format!r}" if format is not None else "a name with the suffix of a file"
        raise ValueError(f"{text}: layout= is for directories, and {what} means a file")
    if layout is None and (format is not None or not is_directory_name(text)):
        if prefix is not None:
            raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")
        return format_to_write(path, format)
    if layout is not None and layout not in _BY_NAME:
        known = ", ".join(map(repr, _BY_NAME))
        raise UnsupportedFormatError(f"layout {layout!r} is unknown; expected one of {known}")
    place = Path(standing(path))
    there = layout_at(place)
    if there is None:
        refuse_read_only(place, asked=text)
    if layout is None:
        return there or DEFAULT
    if there is not None and there.name != layout:
        raise NotACheckpointError(
            f"{text} is a checkpoint of the layout {there.name!r}: save with layout="
            f"{there.name!r}, remove it, or save to another path"
        )
    return _BY_NAME[layout]


def refuse_read_only(place: str | os.PathLike[str], *, asked: str) -> None:
    """Raise NotACheckpointError for a directory with what another tool has written.

    `asked` is the path that the caller gave.
    """
    for row in READ_ONLY:
        if module_of(row).is_at(place):
            raise NotACheckpointError(
                f"{asked} holds what {row.name} has written, which cordwood only reads: remove "
                "it, or save to another path"
            )


def origin_of(
    path: str | os.PathLike[str], *, format: str | None, prefix: str | None
) -> Format | Layout:
    """How what lies at `path` is to be read.

    Raises:
        UnsupportedFormatError: it is a file, or no name of a directory, and of no known format.
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: it is a directory without an index, or what a save that did not
            finish was to become.
        NotACheckpointError: it is a directory with several.
    """
    text = os.fspath(path)
    if parse_url(path) is not None:
        return _in_a_store(text, format=format, layout=None)
    place = Path(standing(path))
    if format is None and place.is_dir():
        there = layout_at(place) or _only_read(place)
        if there is not None:
            return there
        for row in READ_ONLY:
            if module_of(row).is_at(place):
                return row
        names = " or ".join(row.index_name for row in (*LAYOUTS, *READ_ONLY))
        raise IncompleteCheckpointError(
            f"{text} has no {names}: no save to it has finished, or it is no checkpoint"
        )
    if prefix is not None:
        raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")
    if format is None and not place.exists() and is_directory_name(text):
        for row in READ_ONLY:
            module_of(row).refuse_unfinished(place)
        raise FileNotFoundError(errno.ENOENT, "there is no checkpoint", text)
    return format_for(path, format)


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


def is_directory_name(text: str) -> bool:
    """Whether a name without `format` or `layout` is meant for a directory.

    All are but those with the suffix of a file: one of a known format, one like it (a slip of
    the pen), or one that other tools write.

    >>> [is_directory_name(name) for name in ("ckpt/100", "run-1.5", "m.safetensor", "m.npz")]
    [True, True, False, False]
    """
    if text.endswith("/"):
        return True
    suffix = Path(text).suffix.lower()
    known = [row.suffix for row in FORMATS]
    return suffix not in _FILE_SUFFIXES and not difflib.get_close_matches(suffix, known, n=1)


def layout_at(path: str | os.PathLike[str]) -> Layout | None:
    """The layout of the checkpoint in a local directory, of those that are written; or None.

    Raises NotACheckpointError where there are indexes of several.
    """
    found = [row for row in _BY_NAME.values() if _is_there(Path(path) / row.index_name)]
    if len(found) > 1:
        names = " and ".join(row.index_name for row in found)
        raise NotACheckpointError(
            f"{os.fspath(path)} has both {names}: remove the one that is not meant"
        )
    return found[0] if found else None


def _only_read(place: Path) -> Layout | None:
    """The layout of a directory that others wrote."""
    names = [entry.name for entry in place.iterdir()]
    for row in LAYOUTS:
        if not row.writable and fnmatch.filter(names, row.index_name):
            return row
    return None


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def module_of(row: Layout) -> Any:
    """The functions of a layout."""
    return importlib.import_module(row.module)
