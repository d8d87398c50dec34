"""A directory tree of zarr arrays that no index lists, as Levanter writes it.

What lies in it beside arrays is passed over, unless it is a checkpoint too: that would be lost.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.format_protocol import Opened
from cordwood.formats.zarr.array_metadata import METADATA_NAME
from cordwood.formats.zarr.read_index import open_arrays, read_arrays
from cordwood.formats.zarr.tensorstore_index import Entry
from cordwood.index import Index
from cordwood.io.threads import gc_paused
from cordwood.storage.directory_reader import FOLDER, OTHER, ReadableDirectory, directory_at

FORMAT = "zarr-tree"
MAX_DEPTH = 64
MAX_FOLDERS = 1 << 20

_CHECKPOINTS = ("cordwood.json", "tensorstore_index.json", "_METADATA")  # have one of these
_TENSORS = (".safetensors", ".safetensors.index.json")
_OTHERS = {
    "zarr.json": "zarr of version 3",
    "manifest.ocdbt": "OCDBT, a database of TensorStore's (Orbax and newer Levanter write it)",
}


def open_tree(path: str | os.PathLike[str], prefix: str | None) -> Opened:
    """Return all arrays of the tree. Raises as `read_tree`; ValueError for a prefix."""
    text = os.fspath(path)
    if prefix is not None:
        raise ValueError(
            f"{text}: prefix= is for directories of several trees; open the directory of that name"
        )
    return open_arrays(directory_at(text), read_tree)


def read_tree(directory: ReadableDirectory) -> Index:
    """Return the index of a directory tree: nested dicts of jax arrays by its directories, sorted.

    An array is a directory with a `.zarray`; where one lies within another, the tree is one flat
    dict of paths. What else lies in the tree is passed over. Nothing can be verified.

    Raises:
        FormatError: there is no array, or a `.zarray` or a chunk is not what it should be; or some
            of it is a checkpoint of its own.
        LimitError: directories nest deeper than MAX_DEPTH, or are more than MAX_FOLDERS.
        CorruptionError: a chunk is missing, a directory is a symbolic link, or cordwood wrote an
            array, whose index is gone.
        UnsupportedFormatError: there are arrays of zarr version 3, or in a database.
    """
    with gc_paused():
        paths = _array_paths(directory)
        if not paths:
            raise FormatError(f"{directory.name}: there is no {METADATA_NAME} in it")
        index = read_arrays(directory, "", [Entry(path, None, None) for path in paths], None)
        return index._replace(format=FORMAT)


def _array_paths(directory: ReadableDirectory) -> list[str]:
    paths = []
    waiting = ["."]
    count = 0
    while waiting:
        path = waiting.pop()
        count += 1
        if count > MAX_FOLDERS:
            raise LimitError(f"{directory.name}: more than {MAX_FOLDERS} directories (MAX_FOLDERS)")
        entries = directory.sizes(path)
        _require_no_checkpoint(entries, directory.name, path)
        if METADATA_NAME in entries:
            paths.append(path)
        for name, what in _OTHERS.items():
            if name in entries:
                raise UnsupportedFormatError(
                    f"{directory.name}/{path}: {name} says that this is {what}, which is not read "
                    "here; expected arrays of zarr version 2"
                )
        if path.count("/") >= MAX_DEPTH:
            raise LimitError(f"{directory.name}/{path:.200}: nested deeper than {MAX_DEPTH}")
        if OTHER in entries.values():  # links among them, which may be to directories: an error
            folders = directory.folders(path)
        else:
            folders = sorted(name for name, size in entries.items() if size == FOLDER)
        waiting += [name if path == "." else f"{path}/{name}" for name in reversed(folders)]
    return paths


def _require_no_checkpoint(names: Collection[str], root: str, path: str) -> None:
    where = root if path == "." else f"{root}/{path}"
    for name in _CHECKPOINTS:
        if name in names:
            raise FormatError(
                f"{root} is no tree of arrays alone: {name} says that {where} is a checkpoint of "
                "its own; load each by itself"
            )
    for name in sorted(names):
        if name.endswith(_TENSORS):
            raise FormatError(
                f"{root} is no tree of arrays alone: {where}/{name} would be left out; load that "
                "by itself, and each directory of arrays, or move it away"
            )
