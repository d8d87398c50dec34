"""`checkpoint`, the aggregate file of older versions of Orbax: a tree in Flax's msgpack.

Before 0.7 a leaf could be stored in it, by `SaveArgs(aggregate=True)` or Flax's
`save_args_from_target`: `_METADATA` says `skip_deserialize` of such a leaf. Every other leaf is an
array beside the file, and has the text PLACEHOLDER://<name> in it. Before 0.3 there is no
`_METADATA`, and this file alone says what the tree is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cordwood.errors import CorruptionError
from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.orbax.tree_metadata import LeafMetadata, TreeMetadata
from cordwood.index import Index, Inline, Leaf, Pieces, Source
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import ReadableFile, read_whole
from cordwood.storage.readable_directory import ReadableDirectory

AGGREGATE_NAME = "checkpoint"
MAX_AGGREGATE_BYTES = 1 << 32  # in an object store
_PLACEHOLDERS = ("PLACEHOLDER://", "AGGREGATED://")  # the second is older
# The first bytes of a dict or list in msgpack. TensorFlow has a text of this name.
_CONTAINERS = frozenset([*range(0x80, 0xA0), *range(0xDC, 0xE0)])


Values: TypeAlias = Mapping[tuple[str, ...], Leaf]  # leaves of the file, by their keys as text


def is_aggregate_at(directory: ReadableDirectory, folder: str = "") -> bool:
    """Return whether there is such a file in a directory, judged by its first byte.

    Args:
        directory: the directory.
        folder: a directory in it; "" for itself.
    """
    return _aggregate_size(directory, folder) is not None


def _aggregate_size(directory: ReadableDirectory, folder: str) -> int | None:
    path = f"{folder}/{AGGREGATE_NAME}" if folder else AGGREGATE_NAME
    if not directory.has(path):
        return None
    size_bytes = directory.sizes(folder or ".").get(AGGREGATE_NAME)
    if not isinstance(size_bytes, int) or not size_bytes:
        return None
    is_container = directory.file(path, size_bytes).read(0, 1)[0] in _CONTAINERS
    return size_bytes if is_container else None


def read_aggregate(directory: ReadableDirectory) -> Index | None:
    """Return the tree in the file; None if there is no such file.

    Raises FormatError, LimitError and TruncatedError, which name the file.
    """
    size_bytes = _aggregate_size(directory, "")
    if size_bytes is None:
        return None
    file: ReadableFile = directory.file(AGGREGATE_NAME, size_bytes)
    if file.latency_bound:  # its many headers would be as many requests
        file = MemoryFile(read_whole(file, limit_bytes=MAX_AGGREGATE_BYTES), file.name)
    index = read_index(file)
    return index._replace(sources=(Source(AGGREGATE_NAME, size_bytes),))


def values_in(aggregate: Index | None) -> Values:
    """Return the leaves that are stored in the file, and not in arrays beside it."""
    leaves = () if aggregate is None else aggregate.leaves
    return {tuple(map(str, leaf.key_path)): leaf for leaf in leaves if array_name(leaf) is None}


def array_name(leaf: Leaf) -> str | None:
    """Return the name of the array that a leaf of the file stands for; None: it is a value."""
    value = leaf.storage.value if isinstance(leaf.storage, Inline) else None
    if type(value) is str:
        for prefix in _PLACEHOLDERS:
            if value.startswith(prefix):
                return value.removeprefix(prefix)
    return None


def tree_of(aggregate: Index) -> TreeMetadata:
    """Return the tree where there is no `_METADATA`. Nothing says what its arrays were."""
    leaves = []
    for leaf in aggregate.leaves:
        name = array_name(leaf)
        in_file = name is None
        name = ".".join(map(str, leaf.key_path)) if name is None else name
        leaves.append(LeafMetadata(leaf.key_path, name, "np.ndarray", in_file))
    return TreeMetadata(aggregate.structure, tuple(leaves), None, None, None)


def value_in_file(stored: LeafMetadata, values: Values, *, source: int) -> Leaf:
    """Return a leaf whose value is in the file.

    Args:
        stored: the leaf.
        values: what `values_in` returned.
        source: the position of the file among the sources of the checkpoint.

    Raises CorruptionError if the file does not have it.
    """
    leaf = values.get(tuple(map(str, stored.key_path)))
    if leaf is None:
        raise CorruptionError(
            f"its value should be in the file {AGGREGATE_NAME!r}, which is missing or does not "
            "have it: the checkpoint is incomplete; copy it again, or load another one"
        )
    if isinstance(leaf.storage, Pieces):
        pieces = tuple([piece._replace(source=source) for piece in leaf.storage.pieces])
        leaf = leaf._replace(storage=leaf.storage._replace(pieces=pieces))
    is_jax = leaf.kind == "numpy" and stored.value_type == "jax.Array"
    return leaf._replace(key_path=stored.key_path, kind="jax" if is_jax else leaf.kind)
