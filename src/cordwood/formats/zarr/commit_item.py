"""The commit of an item: a staging directory with its arrays is put in place, index last.

All other items keep their paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from cordwood.formats.zarr.array_paths import array_paths
from cordwood.formats.zarr.existing_index import existing_index
from cordwood.formats.zarr.item_members import encode_item
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME
from cordwood.formats.zarr.plan_item import ItemPlan
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    Entry,
    drop_item,
    encode_index,
    entries_of,
    prefixes_of,
    put_item,
)
from cordwood.plan.file_plan import ChunkFile
from cordwood.storage.staging.staging_directory import DirectoryChange, StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile

_CHUNK_NAME = re.compile(r"[0-9]+(\.[0-9]+)*")


def commit_item(
    stage: StagingDirectory,
    item: ItemPlan,
    sizes: Sequence[int] | None,
    written: Sequence[WrittenFile],
) -> None:
    """Put a staging directory in place that holds the arrays of an item.

    Args:
        stage: the staging directory.
        item: the item that was written.
        sizes: of its chunk files, in bytes; None where all are raw.
        written: all its files, one array after another.
    """
    members = item_members(item, sizes, written) if item.covered else None
    stage.commit(partial(_change, stage.asked, item, members))


def chunk_sizes(item: ItemPlan, written: Sequence[WrittenFile]) -> list[int] | None:
    """Return the sizes of the chunk files of an item; None where all are raw."""
    if item.compression is None:
        return None
    files = zip(item.files, written, strict=True)
    return [done.size_bytes for file, done in files if isinstance(file, ChunkFile)]


def item_members(
    item: ItemPlan, sizes: Sequence[int] | None, written: Sequence[WrittenFile]
) -> dict[str, object]:
    """Return cordwood's part of the index for an item; arguments as of `commit_item`."""
    digests = b"".join([file.digests for file in written])
    leaves = [array.leaf for array in item.arrays]
    return encode_item(item.structure, leaves, sizes, digests, item.metadata)


def _change(
    asked: str, item: ItemPlan, members: Mapping[str, object] | None, existing: str | None
) -> DirectoryChange:
    """Return the paths and the index of an item beside the items of the old directory.

    Args:
        asked: the path of the directory, for errors.
        item: the item that was written.
        members: cordwood's part of the index; None leaves the item out of it.
        existing: the old directory; None: there is none.
    """
    index = None if existing is None else existing_index(existing, asked)
    prefix = item.prefix
    names = [] if index is None else [name for name in prefixes_of(index) if name != prefix]
    others = [entry.path for name in names for entry in entries_of(index, name)] if index else []
    replaced: list[str] = []
    if index is not None and prefix in prefixes_of(index):
        replaced = [entry.path for entry in entries_of(index, prefix)]
    paths = array_paths(item.key_paths, prefix, others=others)
    moves = [
        (staged, path) for staged, path in zip(item.paths, paths, strict=True) if staged != path
    ]
    index_too = members is not None or index is not None
    dropped = partial(_dropped_names, {*replaced}, {*paths}, index_too)
    if members is not None:
        arrays = zip(item.arrays, paths, strict=True)
        entries = [Entry(path, array.shape, array.dtype) for array, path in arrays]
        index = put_item(index, prefix, entries, members)
    elif index is not None:
        index = drop_item(index, prefix)
    index_file = None if index is None else (INDEX_NAME, encode_index(index))
    return DirectoryChange(dropped, moves, index_file)


def _dropped_names(
    replaced: set[str], paths: set[str], index_too: bool, folder: str, names: set[str]
) -> set[str]:
    """Return the names in a directory of the old checkpoint that the new one does not keep.

    Args:
        replaced: the paths of the arrays that the new ones replace.
        paths: those of the new arrays.
        index_too: True if there is a new index.
        folder: the path of the directory; "" for the checkpoint itself.
        names: the names in it.
    """
    dropped = {INDEX_NAME} if index_too and not folder else set()
    # The path of an array, and of an old one that no index lists any more.
    if (folder or ".") in replaced or (folder in paths and METADATA_NAME in names):
        dropped |= {name for name in names if name == METADATA_NAME or _CHUNK_NAME.fullmatch(name)}
    return dropped
