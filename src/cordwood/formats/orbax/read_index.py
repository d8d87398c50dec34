"""The index of one tree of an Orbax checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.orbax.array_reader import ArrayReader
from cordwood.formats.orbax.key_values import READ_ERRORS, FileValues, OcdbtValues
from cordwood.formats.orbax.ocdbt import MANIFEST_NAME
from cordwood.formats.orbax.sharding_file import SHARDINGS_NAME, parse_shardings
from cordwood.formats.orbax.tree_metadata import (
    MAX_TREE_FILE_BYTES,
    TREE_NAME,
    LeafMetadata,
    TreeMetadata,
    parse_tree_metadata,
)
from cordwood.formats.orbax.zero_chunks import ZeroChunks
from cordwood.index import Index, Inline, Leaf
from cordwood.io.pause_python_gc import gc_paused
from cordwood.keypath import KeyPath
from cordwood.storage.directory_reader import ReadableDirectory

FORMAT = "orbax"

_STRINGS_NAME = "_strings.json"
_KEYS_FOLDER = "array_metadatas"
_KEYS_BEGIN = "process_"
_MOST_SHOWN = 200  # characters of a name, in an error
# The dtypes that Python numbers are stored in; a scalar of any other dtype was a numpy scalar.
_NUMBERS: Mapping[str, Any] = {"bool": bool, "int64": int, "float64": float}
# The number of uint32 words in one PRNG key, for the known implementations.
_KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


class OrbaxIndex(NamedTuple):
    """The index of a tree, and the bytes of those of its sources that are not files."""

    tree: Index
    memory: Mapping[int, Any]  # bytes of the sources that are not files, by number of the source
    checked_bytes: int  # bytes of the sources whose checksums matched
    unstored: Mapping[KeyPath, int]  # the number of missing chunks, which are zeros, of a leaf
    assumed: Sequence[KeyPath]  # leaves without any chunk that are assumed to be zeros


def read_index(directory: ReadableDirectory) -> OrbaxIndex:
    """Read the index of one tree of an Orbax checkpoint.

    Names of sources are relative to the directory. Arrays are of jax or numpy, as Orbax recorded
    them. Scalars of a dtype in which Python numbers are stored become Python numbers.

    Args:
        directory: the directory that has `_METADATA`.

    Raises:
        FormatError: `_METADATA`, the database, the metadata of an array or a chunk is malformed;
            the message names the file or the array.
        CorruptionError: a file or chunk is missing, or does not match its checksum.
        UnsupportedFormatError: it is of a newer version, or uses an unsupported codec.
    """
    with gc_paused():
        data = directory.read(TREE_NAME, limit_bytes=MAX_TREE_FILE_BYTES)
        try:
            tree = parse_tree_metadata(data)
        except FormatError as e:
            raise type(e)(f"{directory.name}: {e}") from e
        return _read_tree(directory, tree)


def _read_tree(directory: ReadableDirectory, tree: TreeMetadata) -> OrbaxIndex:
    use_ocdbt = tree.use_ocdbt
    if use_ocdbt is None or not _has_arrays(tree):  # Orbax makes no database without arrays
        use_ocdbt = directory.has(MANIFEST_NAME)
    values: OcdbtValues | FileValues = (
        OcdbtValues(directory) if use_ocdbt else FileValues(directory)
    )
    zero_chunks = None
    if not tree.stores_zeros:
        zero_chunks = ZeroChunks(values.sources, is_certain=use_ocdbt or tree.stores_zeros is False)
    version = None if tree.use_zarr3 is None else 3 if tree.use_zarr3 else 2
    reader = ArrayReader(values, version, zero_chunks)
    strings = _strings(directory) if _has_strings(tree) else {}
    keys = _key_impls(directory)
    leaves = []
    for leaf in tree.leaves:
        try:
            leaves.append(_leaf(leaf, reader, strings, keys.get(leaf.name)))
        except READ_ERRORS as e:
            raise _named(e, directory, leaf.name) from e
    memory = dict(zero_chunks.memory) if zero_chunks is not None else {}
    checked = 0
    if isinstance(values, OcdbtValues):
        memory[0] = values.inline
        checked = values.checked_bytes
    by_name = _shardings(directory)
    shardings = {
        n: by_name[leaf.name] for n, leaf in enumerate(tree.leaves) if leaf.name in by_name
    }
    index = Index(
        FORMAT,
        tree.structure,
        tuple(leaves),
        tuple(values.sources),
        "keys",
        shardings=shardings,
    )
    paths = {leaf.name: leaf.key_path for leaf in tree.leaves}
    unstored = {paths[name]: count for name, count in reader.unstored.items()}
    return OrbaxIndex(index, memory, checked, unstored, [paths[name] for name in reader.assumed])


def _leaf(
    stored: LeafMetadata, reader: ArrayReader, strings: Mapping[str, str], key_impl: str | None
) -> Leaf:
    path, name, value_type = stored
    if value_type == "string":
        if name not in strings:
            raise CorruptionError(f"{_STRINGS_NAME} does not have it: the checkpoint is incomplete")
        return Leaf(path, "str", (), "", Inline(strings[name]))
    array = reader.array(name)
    shape, dtype, storage = array
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
        return Leaf(path, number.__name__, (), "", Inline(number(reader.element(array))))
    return Leaf(path, "jax" if value_type == "jax.Array" else "numpy", shape, dtype, storage)


def _has_arrays(tree: TreeMetadata) -> bool:
    return any(leaf.value_type != "string" for leaf in tree.leaves)


def _has_strings(tree: TreeMetadata) -> bool:
    return any(leaf.value_type == "string" for leaf in tree.leaves)


def _strings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return the values of string leaves, by their names."""
    strings = _json(directory, _STRINGS_NAME)
    if type(strings) is not dict or not all(type(text) is str for text in strings.values()):
        raise FormatError(f"{directory.name}/{_STRINGS_NAME}: expected an object of strings")
    return strings


def _shardings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return a text for the sharding of each array, by the names of leaves."""
    if not directory.has(SHARDINGS_NAME):
        return {}
    try:
        data = directory.read(SHARDINGS_NAME, limit_bytes=MAX_TREE_FILE_BYTES)
    except READ_ERRORS:
        return {}
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
    try:
        return parse_json(data.decode(), f"{directory.name}/{path}", allow_nan=True)
    except UnicodeDecodeError as e:
        raise FormatError(f"{directory.name}/{path} is not UTF-8 at byte {e.start}") from e


def _named(error: Exception, directory: ReadableDirectory, name: str) -> Exception:
    """Return the same error with the directory and the name of the leaf in front."""
    text = str(error)
    if not text.startswith(directory.name):
        plain = name.isprintable() and len(name) <= _MOST_SHOWN
        shown = name if plain else f"{name!r:.{_MOST_SHOWN}}"
        text = f"{directory.name}: {shown or 'the root'}: {text}"
    return type(error)(text)
