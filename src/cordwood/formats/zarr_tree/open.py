"""Open a directory tree of zarr arrays that has no index."""

from __future__ import annotations

import os

from cordwood.formats.opened import Checked, Contents
from cordwood.formats.zarr_tree.read_index import FORMAT, read_index
from cordwood.storage.directory_reader import FileOwningDirectory, LocalDirectory


def open_contents(path: str | os.PathLike[str], prefix: str | None) -> Contents:
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
    return Contents(FORMAT, index, files)


def prefixes_at(path: str | os.PathLike[str]) -> list[str]:
    """Return the prefixes of the trees: the unnamed one alone."""
    del path
    return [""]


def verify_all(path: str | os.PathLike[str]) -> Checked:
    """Check that all chunks are there, as large as they should be; they carry no digests.

    Raises as `open_contents`.
    """
    with LocalDirectory(os.fspath(path)) as directory:
        index = read_index(directory)
    return Checked(len(index.leaves), 0, sum(source.size_bytes for source in index.sources))
