"""The files that belong to a checkpoint of Orbax, by their names and by its metadata.

`_CHECKPOINT_METADATA` lists the items, and `_METADATA` the arrays of a tree. By its name alone, a
file such as `notes/metadata` or `embeddings/.zarray` may be a part of either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.orbax.checkpoint_metadata import read_checkpoint_metadata
from cordwood.formats.orbax.json_files import MAX_FILE_BYTES
from cordwood.formats.orbax.orbax_directory import inspect_directory
from cordwood.formats.orbax.tree_metadata import TREE_NAME, parse_tree_metadata
from cordwood.formats.zarr.array_files import array_files
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import ReadableDirectory

_TREE = (
    r"(?:_METADATA|_sharding|_strings\.json|checkpoint|commit_success\.txt|manifest\.ocdbt"
    r"|d/[0-9a-f]+|ocdbt\.process_\d+/(?:manifest\.ocdbt|d/[0-9a-f]+)|array_metadatas/process_\d+)"
)
_ITEM = r"[^/]+"
_FILE = re.compile(
    rf"_CHECKPOINT_METADATA|(?:{_ITEM}/)?{_TREE}|{_ITEM}/(?:metadata|process_\d+-of-\d+\.\w+)"
    rf"|metrics/metrics|descriptor/descriptor\.pbtxt|{_ITEM}/jax_random_key/{_TREE}"
    rf"|{_ITEM}/jax_random_key_metadata/(?:metadata|commit_success\.txt)"
)
_OF_TREE = re.compile(r"d|ocdbt\.process_\d+|array_metadatas")  # folders beside those of arrays
_OF_MANAGER = ("metrics", "descriptor")


def foreign_files(location: Location, names: Sequence[str]) -> Collection[str]:
    """Return the files in a checkpoint that belong to none of its items and arrays.

    Where the metadata is missing, as in old versions, or damaged, the names alone decide.

    Args:
        location: the checkpoint.
        names: the paths of its files, relative to it.
    """
    foreign = {name for name in names if not _FILE.fullmatch(name)} - array_files(names)
    with suppress(CordwoodError, OSError), directory_at(location) as directory:
        trees = {tree: _arrays(directory, tree) for tree in inspect_directory(directory).trees}
        items = _items(directory, trees)
        foreign |= {name for name in names if _is_unlisted(name, items, trees)}
    return foreign


def _items(directory: ReadableDirectory, trees: Collection[str]) -> Collection[str] | None:
    """Return the names of the items; None if the checkpoint does not list them."""
    if "" in trees:
        return ()
    handlers = read_checkpoint_metadata(directory).item_handlers
    return {*handlers, *trees, *_OF_MANAGER} if handlers else None


def _arrays(directory: ReadableDirectory, tree: str) -> Collection[str] | None:
    """Return the names of the arrays of a tree; None if that does not list them."""
    name = f"{tree}/{TREE_NAME}" if tree else TREE_NAME
    if not directory.has(name):
        return None
    data = directory.read(name, limit_bytes=MAX_FILE_BYTES)
    return {leaf.name for leaf in parse_tree_metadata(data).leaves}


def _is_unlisted(
    name: str,
    items: Collection[str] | None,
    trees: Mapping[str, Collection[str] | None],
) -> bool:
    first, slash, path = name.partition("/")
    if not slash:
        return False
    if "" not in trees:
        if items is not None and first not in items:
            return True
        arrays, inner = trees.get(first), path
    else:
        arrays, inner = trees[""], name
    parts = inner.split("/")
    if arrays is None or len(parts) == 1 or _OF_TREE.fullmatch(parts[0]):
        return False
    return not any("/".join(parts[:depth]) in arrays for depth in range(1, len(parts)))
