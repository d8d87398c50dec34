"""Open a directory tree of zarr arrays that has no index."""

from __future__ import annotations

import os

from cordwood.formats.format_protocol import Opened
from cordwood.formats.zarr_tree.read_index import FORMAT, read_index
from cordwood.storage.directory_reader import FileOwningDirectory, LocalDirectory


def open_tree(path: str | os.PathLike[str], prefix: str | None) -> Opened:
    """Return all arrays of the tree. Raises as `read_index`; ValueError for a prefix."""
    text = os.fspath(path)
    if prefix is not None:
        raise ValueError(
            f"{text}: prefix= is for directories of several trees; open the directory of that name"
        )
    directory = LocalDirectory(text)
    try:
        index = read_index(directory)
    except BaseException:
        directory.close()
        raise
    files = [
        FileOwningDirectory(directory, source.name, source.size_bytes) for source in index.sources
    ]
    return Opened(FORMAT, index, files)
