"""The index of a database of zarr arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.ocdbt.values import OcdbtValues
from cordwood.formats.ocdbt_arrays.pytreedef import MAX_TREE_BYTES, TREE_NAME, parse_tree_file
from cordwood.formats.orbax.chunk_messages import MESSAGES
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_reader import ArrayReader, StoredArray, leaf_of_array
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME
from cordwood.formats.zarr.metadata_v3 import METADATA3_NAME
from cordwood.formats.zarr.nested_dicts import nested_dicts
from cordwood.formats.zarr.unstored_chunks import ZeroChunks
from cordwood.index import LEAF, Index, Structure, leaf_paths
from cordwood.io.open_files import naming
from cordwood.keypath import KeyPath
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import OpenDirectory
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "ocdbt"
_STORE = "array_store"  # of jax's serialization
_ORBAX_ARRAY = "checkpoint"  # a single array of Orbax 0.3 and 0.4, of zarr version 2


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open all arrays of a database: nested dicts of their names, or the tree of `pytreedef.json`.

    A chunk that the database does not list equals the fill value of its array.

    Raises:
        ValueError: an item is asked for.
        FormatError, CorruptionError, UnsupportedFormatError: the database, the structure or an
            array is not what it should be; the message names it.
    """
    del format, options
    text = str(location)
    if item is not None:
        raise ValueError(f"{text}: prefix= is for directories of several trees; this one holds one")
    directory = directory_at(location)
    try:
        if not directory.has(TREE_NAME):
            return _open(directory, None)
        tree = directory.read(TREE_NAME, limit_bytes=MAX_TREE_BYTES)
        store = directory.folder(_STORE)
    except BaseException:
        directory.close()
        raise
    directory.close()
    return _open(store, tree)


def _open(directory: OpenDirectory, tree: bytes | None) -> Opened:
    try:
        with gc_paused():
            return _read(directory, tree)
    except BaseException:
        directory.close()
        raise


def _read(directory: OpenDirectory, tree: bytes | None) -> Opened:
    values = OcdbtValues(directory)
    zero_chunks = ZeroChunks(values.sources, values.memory, is_certain=True)
    reader = ArrayReader(values, MESSAGES, version=None, zero_chunks=zero_chunks)
    names = _array_names(values.keys)
    arrays = {}
    for name in names:
        with naming(f"{directory.name}: {name or 'the root'}", within=directory.name):
            file, data = reader.read_metadata(name)
            with naming(file):
                metadata = reader.parse(file, data)
            arrays[name] = StoredArray(metadata, reader.pieces(name, metadata))
    structure: Structure = (LEAF,)
    paths: Sequence[KeyPath] = [()]
    with naming(directory.name):
        if tree is not None:
            structure, paths, names = _stored_tree(tree, arrays)
        elif names != [_ORBAX_ARRAY] or METADATA_NAME not in values.keys[0]:
            structure, order, paths = nested_dicts([name or "." for name in names], "")
            names = [names[i] for i in order]
    leaves = [leaf_of_array(path, arrays[name]) for path, name in zip(paths, names, strict=True)]
    files = values.open_sources(directory)
    return Opened(
        FORMAT,
        Index(FORMAT, structure, tuple(leaves), tuple(values.sources), "keys"),
        files,
        checked_bytes=values.checked_bytes,
        stored_bytes=values.stored_bytes,
        unstored={
            path: reader.unstored[name]
            for path, name in zip(paths, names, strict=True)
            if name in reader.unstored
        },
    )


def _stored_tree(
    tree: bytes, arrays: Mapping[str, StoredArray]
) -> tuple[Structure, Sequence[KeyPath], list[str]]:
    """Return a structure, the key paths of its leaves, and the names of their arrays."""
    structure, expected = parse_tree_file(tree)
    for number, (dtype, shape) in expected.items():
        array = arrays.get(str(number))
        if array is None:
            raise CorruptionError(f"{TREE_NAME}: the array {number} is missing; copy it again")
        metadata = array.metadata
        if (metadata.dtype, metadata.shape) != (dtype, shape):
            raise FormatError(
                f"{TREE_NAME}: the array {number} should be {dtype}{list(shape)}, and is "
                f"{metadata.dtype}{list(metadata.shape)}"
            )
    return structure, leaf_paths(structure), list(map(str, expected))


def _array_names(keys: Sequence[str]) -> list[str]:
    """Return the names of the arrays: those of keys that end in the name of array metadata."""
    names = []
    for key in keys:
        name, _, last = key.rpartition("/")
        if last in (METADATA3_NAME, METADATA_NAME):
            names.append(name)
    return names
