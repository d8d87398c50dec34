"""One tree of an Orbax checkpoint: opened, and its index."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError, LimitError
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME
from cordwood.formats.ocdbt.values import OcdbtValues
from cordwood.formats.orbax.aggregate_file import (
    read_aggregate,
    tree_of,
    value_in_file,
    values_in,
)
from cordwood.formats.orbax.array_item import array_tree, as_array, is_saved_as_array, is_single
from cordwood.formats.orbax.locate_trees import inspect_tree, item_kind, select_tree
from cordwood.formats.orbax.tree_metadata import (
    MAX_TREE_FILE_BYTES,
    SHARDINGS_NAME,
    STORES_ZEROS,
    TREE_NAME,
    LeafMetadata,
    TreeMetadata,
    parse_shardings,
    parse_tree_metadata,
)
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_metadata import codec_of
from cordwood.formats.zarr.array_reader import ArrayReader, Messages, StoredArray, array_storage
from cordwood.formats.zarr.key_values import FileValues, KeyValues, ValueLocation
from cordwood.formats.zarr.unstored_chunks import ZeroChunks
from cordwood.index import Index, Inline, Leaf
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.open_files import READ_ERRORS, naming
from cordwood.keypath import path_label
from cordwood.message_text import first_names, printable
from cordwood.plan.load_plan import EncodedChunk, Scatter
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import OpenDirectory, ReadableDirectory
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "orbax"

_STRINGS_NAME = "_strings.json"
_KEYS_FOLDER = "array_metadatas"
_KEYS_BEGIN = "process_"
_MOST_SHOWN = 200  # characters of a name, in an error
MAX_ELEMENT_BYTES = 1 << 16  # of a chunk that holds one element
MESSAGES = Messages(
    missing="{key} is missing: the checkpoint is incomplete; copy it again, or load another one",
    partly_missing=(
        "{key} is missing, but other chunks of the array exist: the checkpoint is incomplete; copy "
        "it again, or load another one. Older versions of Orbax do not store zeros and do not "
        "record it: if such a version wrote this checkpoint, set "
        f'"{STORES_ZEROS}": false in {TREE_NAME}'
    ),
    wrong_size=(
        "{key}: expected {expected} bytes, found {actual}: it is damaged, or belongs to another "
        "array; copy it again"
    ),
    extra=(
        "{key} is not a chunk of an array of shape {shape} in chunks of {chunks}: it or the "
        "metadata of the array belongs to another checkpoint; copy it again"
    ),
)
# The dtypes that Python numbers are stored in; a scalar of any other dtype was a numpy scalar.
_NUMBERS: Mapping[str, Any] = {"bool": bool, "int64": int, "float64": float}
# The number of uint32 words in one PRNG key, for the known implementations.
_KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a tree.

    Args:
        format: the row of Orbax.
        location: the checkpoint, or the directory of one of its items.
        item: the item's name. None: the checkpoint itself, or its only item that is a tree.
        options: for `verify`, do not warn; see `open_tree`.

    Raises:
        IncompleteCheckpointError: the save did not finish, or the directory is a root of steps;
            names the newest.
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError, CorruptionError: as `open_tree`.
    """
    del format
    text = str(location)
    place = directory_at(location)
    try:
        inspected = inspect_tree(place)
        # A prefix that is not the name of an item could be a path to anywhere: it is not opened.
        kind = item_kind(place, item) if item is not None and item in inspected.others else ""
        tree = select_tree(inspected, item, name=text, kind=kind)
        directory = place.folder(tree) if tree else place
    except BaseException:
        place.close()
        raise
    try:
        is_array = partial(is_saved_as_array, place, tree)
        return open_tree(directory, warn=not options.for_verify, is_array=is_array)
    except BaseException:
        directory.close()
        raise
    finally:
        if tree:
            place.close()


def open_tree(
    directory: OpenDirectory, *, warn: bool, is_array: Callable[[], bool] = lambda: False
) -> Opened:
    """Read the index of one tree of an Orbax checkpoint; its files own the directory.

    Names of sources are relative to the directory. Arrays are of jax or numpy, as Orbax recorded
    them. Scalars of a dtype in which Python numbers are stored become Python numbers.

    Args:
        directory: the directory that has `_METADATA`, or the aggregate file of an old version.
        is_array: returns True if `ArraySave` wrote the tree. Asked only if it has one leaf, with
            the name that Orbax gives such an array: then it is the leaf.
        warn: warn of arrays without any chunk: zeros that nothing vouches for must not pass in
            silence.

    Raises:
        FormatError: `_METADATA`, the database, the metadata of an array or a chunk is malformed;
            the message names the file or the array.
        CorruptionError: a file or chunk is missing, or does not match its checksum.
        UnsupportedFormatError: it is of a newer version, or uses an unsupported codec.
    """
    with gc_paused():
        aggregate = read_aggregate(directory)
        if directory.has(TREE_NAME):
            data = directory.read(TREE_NAME, limit_bytes=MAX_TREE_FILE_BYTES)
            with naming(directory.name):
                tree = parse_tree_metadata(data, values_in(aggregate))
            if is_single(tree) and is_array():
                tree = as_array(tree)
        else:
            tree = array_tree(directory) if aggregate is None else tree_of(aggregate)
        opened, assumed = _open(directory, tree, aggregate)
    if warn and assumed:
        warnings.warn(
            f"{directory.name}: no chunk of {first_names(assumed, 1)} is stored: zeros, which "
            "older versions of Orbax left out without saying so, or files that are lost; "
            "cordwood.verify lists them",
            RuntimeWarning,
            stacklevel=2,
        )
    return opened


def _open(
    directory: OpenDirectory, tree: TreeMetadata, aggregate: Index | None
) -> tuple[Opened, list[str]]:
    """Return the tree, open, and the names of leaves that are assumed to be zeros."""
    use_ocdbt = tree.use_ocdbt
    are_strings = {leaf.value_type == "string" for leaf in tree.leaves if not leaf.in_aggregate}
    if use_ocdbt is None or False not in are_strings:  # Orbax makes no database without arrays
        use_ocdbt = directory.has(MANIFEST_NAME)
    values = OcdbtValues(directory) if use_ocdbt else FileValues(directory, are_listed=False)
    zero_chunks = None
    if not tree.stores_zeros:
        zero_chunks = ZeroChunks(
            values.sources, values.memory, is_certain=use_ocdbt or tree.stores_zeros is False
        )
    version = None if tree.use_zarr3 is None else 3 if tree.use_zarr3 else 2
    reader = ArrayReader(values, MESSAGES, version=version, zero_chunks=zero_chunks)

    strings = _strings(directory) if True in are_strings else {}
    keys = _key_impls(directory)
    in_file, aggregate_source = values_in(aggregate), len(values.sources)
    if aggregate is not None:
        values.sources += aggregate.sources
    leaves = []
    for leaf in tree.leaves:
        shown = leaf.name
        if not shown.isprintable() or len(shown) > _MOST_SHOWN:
            shown = f"{shown!r:.{_MOST_SHOWN}}"
        with naming(f"{directory.name}: {shown or 'the root'}", within=directory.name):
            if leaf.in_aggregate:
                leaves.append(value_in_file(leaf, in_file, source=aggregate_source))
            else:
                leaves.append(_leaf(leaf, reader, values, strings, keys.get(leaf.name)))
    by_name = _shardings(directory)
    shardings = {
        n: by_name[leaf.name] for n, leaf in enumerate(tree.leaves) if leaf.name in by_name
    }
    sources = tuple(values.sources)
    paths = {leaf.name: leaf.key_path for leaf in tree.leaves}
    opened = Opened(
        FORMAT,
        Index(FORMAT, tree.structure, tuple(leaves), sources, "keys", shardings=shardings),
        values.open_sources(directory),
        checked_bytes=values.checked_bytes,
        stored_bytes=values.stored_bytes,
        unstored={paths[name]: count for name, count in reader.unstored.items()},
    )
    return opened, [printable(path_label(paths[name])) for name in reader.assumed]


def _leaf(
    stored: LeafMetadata,
    reader: ArrayReader,
    values: KeyValues,
    strings: Mapping[str, str],
    key_impl: str | None,
) -> Leaf:
    path, name, value_type, _ = stored
    if value_type == "string":
        if name not in strings:
            raise CorruptionError(f"{_STRINGS_NAME} does not have it: the checkpoint is incomplete")
        return Leaf(path, "str", (), "", Inline(strings[name]))
    file, data = reader.read_metadata(name)
    with naming(file):
        metadata = reader.parse(file, data)
    array = StoredArray(metadata, reader.pieces(name, metadata))
    shape, dtype = metadata.shape, metadata.dtype
    storage = array_storage(array, len(shape))
    if key_impl is not None:
        if dtype != "uint32" or not shape or _KEY_WORDS.get(key_impl, shape[-1]) != shape[-1]:
            raise FormatError(
                f"an array of {dtype}{list(shape)} cannot hold PRNG keys of {key_impl!r:.40}"
            )
        return Leaf(path, "prng_key", shape, dtype, storage, prng_impl=key_impl)
    if value_type == "scalar":
        if shape:
            raise FormatError(f"an array of shape {list(shape)} is not a scalar")
        number = _NUMBERS.get(dtype)
        if number is None:
            return Leaf(path, "numpy_scalar", shape, dtype, storage)
        return Leaf(path, number.__name__, (), "", Inline(number(_element(array, values))))
    return Leaf(path, "jax" if value_type == "jax.Array" else "numpy", shape, dtype, storage)


def _element(array: StoredArray, values: KeyValues) -> Any:
    """Return the only element of an array of shape () as a numpy scalar."""
    import numpy as np

    from cordwood.io.chunk_codecs import decode_chunk

    metadata, (piece,) = array
    _, source, offset, length = piece
    if length > MAX_ELEMENT_BYTES:
        raise LimitError(
            f"a number in {length} bytes; expected at most {MAX_ELEMENT_BYTES} (MAX_ELEMENT_BYTES)"
        )
    data = values.read(ValueLocation(source, offset, length), 0, length)
    spread = Scatter((), dtypes.itemsize(metadata.dtype), ())
    chunk = EncodedChunk(source, offset, length, codec_of(metadata), metadata.dtype, spread)
    raw = decode_chunk(chunk, memoryview(data), ScratchBuffer(), name=values.sources[source].name)
    return np.frombuffer(raw, dtypes.to_numpy(metadata.dtype))[0]


def _strings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return the values of string leaves, by their names."""
    strings = _json(directory, _STRINGS_NAME)
    if type(strings) is not dict or not all(type(text) is str for text in strings.values()):
        raise FormatError(f"{directory.name}/{_STRINGS_NAME}: expected an object of strings")
    return strings


def _shardings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return a text for the sharding of each array, by the names of leaves."""
    data = b""
    with suppress(*READ_ERRORS):
        if directory.has(SHARDINGS_NAME):
            data = directory.read(SHARDINGS_NAME, limit_bytes=MAX_TREE_FILE_BYTES)
    return parse_shardings(data)


def _key_impls(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return the implementations of PRNG keys, by the names of leaves."""
    impls: dict[str, str] = {}
    if not directory.has(_KEYS_FOLDER):
        return impls
    for file in sorted(directory.sizes(_KEYS_FOLDER)):
        if not file.startswith(_KEYS_BEGIN):
            continue
        path = f"{_KEYS_FOLDER}/{file}"
        members = _json(directory, path)
        entries = members.get("array_metadatas") if type(members) is dict else None
        if type(entries) is not list:
            raise FormatError(f"{directory.name}/{path}: expected an object with array_metadatas")
        for entry in entries:
            metadata = entry.get("array_metadata") if type(entry) is dict else None
            if type(metadata) is not dict or type(metadata.get("param_name")) is not str:
                raise FormatError(f"{directory.name}/{path}: {entry!r:.80} names no array")
            extension = metadata.get("ext_metadata")
            impl = extension.get("random_key_impl") if type(extension) is dict else None
            if impl is not None:
                if type(impl) is not str:
                    raise FormatError(f"{directory.name}/{path}: random_key_impl: {impl!r:.80}")
                impls[metadata["param_name"]] = impl
    return impls


def _json(directory: ReadableDirectory, path: str) -> Any:
    data = directory.read(path, limit_bytes=MAX_TREE_FILE_BYTES)
    return parse_json(data, f"{directory.name}/{path}", allow_nan=True)
