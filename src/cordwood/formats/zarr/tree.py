"""A directory tree of zarr arrays that no index lists, as Levanter writes it."""

from __future__ import annotations

from cordwood.engine.collector import collector_paused
from cordwood.engine.directory import ReadableDirectory
from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.zarr.index_file import Entry
from cordwood.formats.zarr.metadata import METADATA_NAME
from cordwood.formats.zarr.scan import scan_arrays
from cordwood.index import Index

__all__ = ["FORMAT", "MAX_FOLDERS", "scan_tree"]

FORMAT = "zarr-tree"
MAX_DEPTH = 64
MAX_FOLDERS = 1 << 20

_OTHERS = {
    "zarr.json": "zarr of version 3",
    "manifest.ocdbt": "OCDBT, a database of TensorStore's (Orbax and newer Levanter write it)",
}


def scan_tree(directory: ReadableDirectory) -> Index:
    """What a directory tree holds: nested dicts of jax arrays by its directories, sorted.

    An array is a directory with a `.zarray`; what else lies in the tree is passed over. Nothing
    can be verified.

    Raises:
        FormatError: there is no array, or a `.zarray` or a chunk is not what it should be.
        LimitError: directories nest deeper than MAX_DEPTH, or are more than MAX_FOLDERS.
        CorruptionError: a chunk is missing, a directory is a symbolic link, or cordwood wrote an
            array, whose index is gone.
        UnsupportedFormatError: there are arrays of zarr version 3, or in a database.
    """
    with collector_paused():
        paths = _array_paths(directory)
        if not paths:
            raise FormatError(f"{directory.name}: there is no {METADATA_NAME} in it")
        index = scan_arrays(directory, "", [Entry(path, None, None) for path in paths], None)
        return index._replace(format=FORMAT)


def _array_paths(directory: ReadableDirectory) -> list[str]:
    found = []
    waiting = ["."]
    count = 0
    while waiting:
        path = waiting.pop()
        count += 1
        if count > MAX_FOLDERS:
            raise LimitError(f"{directory.name}: more than {MAX_FOLDERS} directories (MAX_FOLDERS)")
        there = directory.sizes(path)
        if METADATA_NAME in there:
            found.append(path)
            continue
        for name, what in _OTHERS.items():
            if name in there:
                raise UnsupportedFormatError(
                    f"{directory.name}/{path}: {name} says that this is {what}, which is not read "
                    "here; expected arrays of zarr version 2"
                )
        if path.count("/") >= MAX_DEPTH:
            raise LimitError(f"{directory.name}/{path:.200}: nested deeper than {MAX_DEPTH}")
        folders = directory.folders(path) if -1 in there.values() else []
        waiting += [name if path == "." else f"{path}/{name}" for name in reversed(folders)]
    return found
