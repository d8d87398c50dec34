"""A directory tree of zarr arrays that no index lists, as Levanter writes it.

Other files in it are ignored, unless they are a checkpoint too: that would be lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_metadata import UnreadableElementsError
from cordwood.formats.zarr.array_reader import (
    ArrayReader,
    Messages,
    StoredArray,
    leaf_of_array,
    refuse_marked,
)
from cordwood.formats.zarr.key_values import FileValues
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME
from cordwood.formats.zarr.metadata_v3 import METADATA3_NAME
from cordwood.formats.zarr.nested_dicts import nested_dicts
from cordwood.formats.zarr.unstored_chunks import ZeroChunks
from cordwood.index import Index, Leaf, unreadable_leaf
from cordwood.io.open_files import naming
from cordwood.keypath import KeyPath, path_label
from cordwood.message_text import first_names, printable
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import FOLDER, OTHER, ReadableDirectory
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "zarr-tree"
MAX_DEPTH = 64
MAX_FOLDERS = 1 << 20
MAX_GROUP_BYTES = 1 << 26  # of a `zarr.json`, with the metadata of all that is below a group

_CHECKPOINTS = ("cordwood.json", "tensorstore_index.json", "_METADATA")  # have one of these
_TENSORS = (".safetensors", ".safetensors.index.json")
_OTHERS = {
    "manifest.ocdbt": "OCDBT, a database of TensorStore's (Orbax and newer Levanter write it)",
}


_MESSAGES = Messages(
    missing=(
        "{key} is missing: the checkpoint is incomplete; copy or save it again (all chunks of an "
        "array without a fill value are stored)"
    ),
)


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Return all arrays of the tree. Raises as `read_tree`; ValueError for an item.

    Args:
        format: the row of such trees.
        location: the directory.
        item: None; such a tree has no items.
        options: unless it is for `verify`, warn of chunks that are missing, and are read as the
            fill value of their array.
    """
    del format
    text = str(location)
    if item is not None:
        raise ValueError(
            f"{text}: prefix= is for directories of several trees; open the directory of that name"
        )
    directory = directory_at(location)
    try:
        arrays = read_tree(directory)
    except BaseException:
        directory.close()
        raise
    if not options.for_verify and arrays.assumed:
        names = first_names([printable(path_label(key_path)) for key_path in arrays.assumed], 1)
        warnings.warn(
            f"{text}: not all chunks of {names} are stored: they are read as the fill value, as "
            "zarr defines it; files that were lost would look the same; cordwood.verify lists them",
            RuntimeWarning,
            stacklevel=2,
        )
    files = arrays.values.open_sources(directory)
    return Opened(FORMAT, arrays.tree, files, unstored=arrays.unstored)


class ArrayTree(NamedTuple):
    """A tree of arrays: its index, and what its files do not hold.

    Attributes:
        tree: the index; names of sources are relative to the directory.
        values: the values of the arrays; their sources are those of the index.
        unstored: the number of chunks that are not stored, by the path of the leaf.
        assumed: the paths of leaves for which files may have been lost.
    """

    tree: Index
    values: FileValues
    unstored: Mapping[KeyPath, int]
    assumed: Sequence[KeyPath]


def read_tree(directory: ReadableDirectory) -> ArrayTree:
    """Read a directory tree: nested dicts of jax arrays by its directories, sorted.

    An array is a directory with a `.zarray`, or with a `zarr.json` that says so; where one is
    within another, the tree is one flat dict of paths. Other files in the tree are ignored.
    An array of a kind that is not read (text, filters, other codecs) is a leaf that cannot be read.
    Chunks that are missing hold the fill value, as zarr defines it. Nothing can be verified.

    Raises:
        FormatError: there is no array, or the metadata of one or a chunk is not what it should be;
            or some of it is a checkpoint of its own.
        LimitError: directories nest deeper than MAX_DEPTH, or are more than MAX_FOLDERS.
        CorruptionError: a chunk is missing of an array without a fill value, a directory is a
            symbolic link, or cordwood wrote an array, whose index is missing.
        UnsupportedFormatError: there are arrays in a database.
    """
    with gc_paused():
        paths = _array_paths(directory)
        if not paths:
            raise FormatError(
                f"{directory.name}: there is no {METADATA_NAME} in it, and no {METADATA3_NAME} of "
                "an array"
            )
        values = FileValues(directory, are_listed=False)
        chunks = ZeroChunks(values.sources, values.memory, is_certain=True, with_fill_values=True)
        reader = ArrayReader(values, _MESSAGES, version=None, zero_chunks=chunks)
        arrays = []
        for path in paths:
            with naming(f"{directory.name}/{path}", within=directory.name):
                arrays.append(_read_array(path, reader))
        structure, order, key_paths = nested_dicts(paths, "")
        leaves = [_leaf(key, arrays[i]) for key, i in zip(key_paths, order, strict=True)]
        index = Index(FORMAT, structure, tuple(leaves), tuple(values.sources), "dotted")
    key_path_of = {
        "" if paths[i] == "." else paths[i]: key for key, i in zip(key_paths, order, strict=True)
    }
    unstored = {key_path_of[array]: count for array, count in reader.unstored.items()}
    return ArrayTree(index, values, unstored, [key_path_of[array] for array in reader.assumed])


def _read_array(path: str, reader: ArrayReader) -> StoredArray | str:
    """Return an array, or the reason why it cannot be read."""
    array = "" if path == "." else path
    name, data = reader.read_metadata(array)
    try:
        metadata = reader.parse(name, data)
    except (UnreadableElementsError, UnsupportedFormatError) as e:
        problem = str(e).partition("; expected")[0]
        return f"{name}: {problem}; read it with zarr, and save numbers"
    refuse_marked(metadata)
    return StoredArray(metadata, reader.pieces(array, metadata))


def _leaf(path: KeyPath, array: StoredArray | str) -> Leaf:
    if isinstance(array, str):
        return unreadable_leaf(path, array)
    return leaf_of_array(path, array)


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
        if METADATA_NAME in entries or (METADATA3_NAME in entries and _is_array3(directory, path)):
            paths.append(path)
        for name, what in _OTHERS.items():
            if name in entries:
                raise UnsupportedFormatError(
                    f"{directory.name}/{path}: {name} says that this is {what}, which is not read "
                    "here; expected arrays of zarr"
                )
        if path.count("/") >= MAX_DEPTH:
            raise LimitError(f"{directory.name}/{path:.200}: nested deeper than {MAX_DEPTH}")
        if OTHER in entries.values():  # links among them, which may be to directories: an error
            folders = directory.folders(path)
        else:
            folders = sorted(name for name, size in entries.items() if size == FOLDER)
        waiting += [name if path == "." else f"{path}/{name}" for name in reversed(folders)]
    return paths


def _is_array3(directory: ReadableDirectory, path: str) -> bool:
    """Return whether a `zarr.json` is of an array, and not of a group."""
    name = METADATA3_NAME if path == "." else f"{path}/{METADATA3_NAME}"
    members = parse_json(
        directory.read(name, limit_bytes=MAX_GROUP_BYTES),
        f"{directory.name}/{name}",
        allow_nan=True,
    )
    kind = members.get("node_type") if type(members) is dict else None
    if kind not in ("array", "group"):
        raise FormatError(
            f"{directory.name}/{name}: node_type: expected 'array' or 'group', found {kind!r:.80}"
        )
    return bool(kind == "array")


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
