"""Flax's and eFormer's calls for msgpack bytes and files of them.

Names, arguments and bytes are those of `flax.serialization` and `eformer.pytree`. The differences:
nothing is copied without need, a value that could not be read back is refused with its key path,
files are written durably, and big-endian arrays keep their values.

`MAX_CHUNK_SIZE` is read at each call: arrays of more bytes than this are stored in pieces.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from cordwood import dtypes
from cordwood.errors import LimitError
from cordwood.formats.flax_msgpack.buffers_of_plan import buffers_of_plan
from cordwood.formats.flax_msgpack.chunk_size import ChunkSizeModule
from cordwood.formats.flax_msgpack.plan_state import plan_state
from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.flax_msgpack.value_size import ValueSize
from cordwood.index import Index, Inline, Pieces
from cordwood.io.leaves_to_write import Leaves
from cordwood.keypath import format_path
from cordwood.state_dict.state_dicts import from_state_dict, state_and_problems, to_state_dict
from cordwood.storage.locations import parse_local_path
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import in_worker
from cordwood.threads.thread_counts import default_threads
from cordwood.threads.thread_pool import run_tasks
from cordwood.tree.flatten import build_tree, flatten

__all__ = [
    "MAX_CHUNK_SIZE",
    "compress_bytes",
    "decompress_bytes",
    "from_bytes",
    "from_compressed_bytes",
    "get_serialization_info",
    "load_from_file",
    "msgpack_restore",
    "msgpack_serialize",
    "save_to_file",
    "to_buffers",
    "to_bytes",
    "to_compressed_bytes",
    "validate_serializable",
]

MAX_CHUNK_SIZE: int
sys.modules[__name__].__class__ = ChunkSizeModule

_COPY_BYTES = 16 << 20
_FOR_A_FILE = "of a .msgpack file"
_T = TypeVar("_T")
EncodedBytes = bytes | bytearray | memoryview


def to_buffers(target: Any) -> list[memoryview]:
    """Return the bytes of `to_bytes` as a list of views, for sockets and `os.writev`.

    Arrays are not copied, unless they are strided, big-endian, long doubles, on an accelerator, or
    sharded. The views keep the memory of the arrays alive, and changing an array changes them.

    Args:
        target: any tree that `to_state_dict` takes.

    Returns:
        Views of bytes, in order.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.

    Example:
        >>> buffers = to_buffers({"w": np.zeros(3, np.float32)})
        >>> b"".join(buffers) == to_bytes({"w": np.zeros(3, np.float32)})
        True
    """
    with gc_paused():
        plan, arrays = plan_state(to_state_dict(target))
        return list(buffers_of_plan(plan, Leaves(arrays)))


def to_bytes(target: Any) -> bytes:
    """Return a tree as Flax's msgpack bytes.

    Args:
        target: any tree that `to_state_dict` takes. Neither it nor a dict that a registered
            handler returns is changed.

    Returns:
        The bytes that `flax.serialization.to_bytes` returns. The only difference is the padding of
        long doubles: zeros here, arbitrary bytes there.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.

    Example:
        >>> from_bytes({"w": None}, to_bytes({"w": np.arange(3)}))
        {'w': array([0, 1, 2])}
    """
    return b"".join(to_buffers(target))


def from_bytes(target: Any, encoded_bytes: EncodedBytes) -> Any:
    """Return a tree with the structure of `target` and the leaves of `encoded_bytes`.

    Args:
        target: gives the structure; its leaves are not used. None: the state dict is returned.
        encoded_bytes: the result of `to_bytes`, or of Flax.

    Returns:
        New containers. Arrays are numpy: read-only views into `encoded_bytes`, as in
        `msgpack_restore`.

    Raises:
        FormatError: the bytes are damaged; the message names the offset.
        MismatchError: they do not have the structure of `target`.
    """
    with gc_paused():
        return from_state_dict(target, msgpack_restore(encoded_bytes))


def msgpack_serialize(pytree: Any, in_place: bool = False) -> bytes:
    """Return nested dicts and lists as Flax's msgpack bytes.

    Args:
        pytree: dicts and lists of arrays, numpy and Python scalars, str, bytes and None; it is
            never changed. For other containers see `to_bytes`.
        in_place: True keeps the order of dicts, as Flax does when it may change `pytree`. False
            sorts the keys, if they can be compared.

    Returns:
        The bytes that `flax.serialization.msgpack_serialize` returns.

    Raises:
        UnsupportedLeafError: a value cannot be stored; the message names its key path.
    """
    plan, arrays = plan_state(pytree, sort_keys=not in_place)
    return b"".join(buffers_of_plan(plan, Leaves(arrays)))


def msgpack_restore(encoded_pytree: EncodedBytes) -> Any:
    """Return the values in Flax's msgpack bytes.

    Args:
        encoded_pytree: bytes, or any buffer of bytes, such as an mmap.

    Returns:
        Nested dicts and lists (and tuples, from Orbax). Arrays are numpy: read-only views into
        `encoded_pytree`, which keep it alive. Arrays that were stored in pieces are joined in
        memory of their own and are writable.

    Raises:
        FormatError: these are not Flax's bytes, or they are damaged; the message names the offset.

    Example:
        >>> msgpack_restore(msgpack_serialize({"w": np.ones(2), "step": 7}))
        {'step': 7, 'w': array([1., 1.])}
    """
    from cordwood.io.memory_file import MemoryFile

    file = MemoryFile(encoded_pytree)
    return _restore_state(read_index(file), file.map())


@in_worker
def save_to_file(target: Any, filepath: str | os.PathLike[str]) -> None:
    """Write the bytes of `to_bytes` to a file, durably and atomically.

    It replaces any file at the path, as in eFormer, even if that is not a checkpoint (`save`
    refuses to replace such a file).

    If the call fails, the old file is unchanged. When it returns, a power cut cannot lose the new
    file. Missing directories are created after the check that the tree can be stored.

    Args:
        target: any tree that `to_state_dict` takes.
        filepath: the path of the file.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.
        OSError: the operating system reported an error.
    """
    from cordwood.storage.write_files import write_file

    path = parse_local_path(filepath, purpose=_FOR_A_FILE)
    plan, arrays = plan_state(to_state_dict(target))
    write_file(path, plan, Leaves(arrays))


def load_from_file(target: Any, filepath: str | os.PathLike[str]) -> Any:
    """Return a tree with the structure of `target` and the leaves of a file.

    Args:
        target: gives the structure; its leaves are not used. None: the state dict is returned.
        filepath: a file that `save_to_file` or eFormer wrote.

    Returns:
        New containers. Arrays are numpy, own their memory, and are writable.

    Raises:
        FormatError: the file is damaged; the message names the offset.
        MismatchError: it does not have the structure of `target`.
        OSError: it cannot be read.
    """
    from cordwood.formats.format_protocol import Opened
    from cordwood.io.open_files import LocalFile
    from cordwood.loading.leaf_reader import LeafReader
    from cordwood.loading.load_target import default_targets
    from cordwood.loading.restore_targets import restore_targets

    with LocalFile(parse_local_path(filepath, purpose=_FOR_A_FILE)) as file:
        index = read_index(file)
        reader = LeafReader(file.name, Opened(index.format, index, [file]))
        values = restore_targets(reader, default_targets(index.leaves, None), verify=False)
    return from_state_dict(target, build_tree(index.structure, values))


def compress_bytes(data: EncodedBytes) -> bytes:
    """Compress bytes to a gzip stream of level 6 without a time stamp: equal in, equal out."""
    from cordwood.formats.flax_msgpack.compress import compress

    return b"".join(compress([data], "gz"))


def decompress_bytes(data: EncodedBytes, *, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a gzip stream.

    Args:
        data: a gzip stream, of `compress_bytes` or any other writer.
        max_bytes: the limit of the decompressed size; None: 4 GiB, or 1100 times the size of
            `data`.

    Raises:
        CorruptionError: it is damaged (also a `gzip.BadGzipFile`).
        TruncatedError: it ends too early (also an `EOFError`).
        LimitError: it holds more than `max_bytes`.

    Example:
        >>> decompress_bytes(compress_bytes(b"cordwood"))
        b'cordwood'
    """
    return bytes(_decompress(data, max_bytes))


def _decompress(
    data: EncodedBytes, max_bytes: int | None, outline: ValueSize | None = None
) -> memoryview:
    from cordwood.formats.flax_msgpack.decompress import decompress
    from cordwood.io.memory_file import MemoryFile

    return decompress(MemoryFile(data), "gz", max_bytes=max_bytes, size_reader=outline).map()


def to_compressed_bytes(target: Any) -> bytes:
    """Return the bytes of `to_bytes` as a gzip stream; see `compress_bytes`."""
    from cordwood.formats.flax_msgpack.compress import compress

    return b"".join(compress(to_buffers(target), "gz"))


def from_compressed_bytes(
    target: Any, compressed_data: EncodedBytes, *, max_bytes: int | None = None
) -> Any:
    """Decompress a gzip stream and call `from_bytes`; see `decompress_bytes`."""
    return from_bytes(target, _decompress(compressed_data, max_bytes, ValueSize()))


def validate_serializable(pytree: Any) -> tuple[bool, list[str]]:
    """Return whether `to_bytes` can store a tree, and the problems if not.

    Works on any object; nothing is copied.

    Returns:
        True or False, and one line for each problem, with its key path and advice.

    Example:
        >>> validate_serializable({"w": np.ones(2), "tags": {"a"}})
        (False, ['tags: a set cannot be stored; store a sorted list'])
    """
    state, problems = state_and_problems(pytree)
    plan_state(state, problems=problems)
    return not problems, [str(problem) for problem in problems]


def get_serialization_info(pytree: Any) -> dict[str, Any]:
    """Return a summary of a tree. Works on any object; nothing is copied.

    Returns:
        A dict with these entries.

        - num_leaves: the number of leaves; None is not a leaf.
        - tree_structure: jax's tree structure as a str, if jax is loaded and supports the tree;
          otherwise the key paths of the tree, or a text that says what is wrong with it.
        - total_elements: the elements of all arrays; other leaves count as one.
        - memory_bytes: the size of all arrays, scalars, str and bytes.
        - is_serializable: whether `to_bytes` can store the tree.
        - dtypes: the dtypes of all arrays, sorted.

    Example:
        >>> info = get_serialization_info({"w": np.ones((2, 3)), "step": 7})
        >>> info["num_leaves"], info["total_elements"], info["memory_bytes"], info["dtypes"]
        (2, 7, 56, ['float64'])
    """
    leaves, structure = _leaves_and_structure(pytree)
    dtype_names = {_call_or(lambda leaf: str(leaf.dtype), leaf, "") for leaf in leaves}
    return {
        "num_leaves": len(leaves),
        "tree_structure": structure,
        "total_elements": sum(_call_or(_element_count, leaf, 1) for leaf in leaves),
        "memory_bytes": sum(_call_or(_memory_bytes, leaf, 0) for leaf in leaves),
        "dtypes": sorted(dtype_names - {""}),
        "is_serializable": validate_serializable(pytree)[0],
    }


def _leaves_and_structure(tree: Any) -> tuple[list[Any], str]:
    """Return the leaves of any tree, and its structure as text."""
    state, problems = state_and_problems(tree)
    if any(isinstance(problem, LimitError) for problem in problems):
        return [], str(problems[-1])  # jax would not end for a tree that contains itself
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is not None:
        with suppress(Exception):  # keys that cannot be sorted, or errors of registered nodes
            leaves, structure = tree_util.tree_flatten(tree)
            return leaves, str(structure)
    with suppress(Exception):  # keys that no format can store
        flat = flatten(tree)
        return list(flat.leaves), ", ".join(map(format_path, flat.paths))
    return _leaves_of_state(state), "; ".join(map(str, problems))


def _leaves_of_state(state: Any) -> list[Any]:
    leaves: list[Any] = []
    stack = [state]
    while stack:
        value = stack.pop()
        if type(value) is dict:
            stack += reversed(value.values())
        elif value is not None:
            leaves.append(value)
    return leaves


def _call_or(function: Callable[[Any], _T], leaf: Any, default: _T) -> _T:
    try:
        return function(leaf)
    except Exception:  # noqa: BLE001  (attributes of leaves may raise anything)
        return default


def _element_count(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    is_shape = isinstance(shape, tuple) and all(type(length) is int for length in shape)
    return math.prod(shape) if is_shape else 1


def _memory_bytes(leaf: Any) -> int:
    if isinstance(leaf, (str, bytes, bytearray)):
        return len(leaf.encode("utf-8", "surrogatepass") if isinstance(leaf, str) else leaf)
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return np.array(leaf).nbytes
    nbytes = getattr(leaf, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0


def _restore_state(index: Index, data: memoryview) -> Any:
    """Return the state dict that `data` encodes.

    Arrays are read-only views into `data` and keep it alive. An array that is stored in several
    pieces is joined in memory of its own and is writable.
    """
    # An array, not the memoryview: views of an array hold its buffer, so a bytearray cannot be
    # resized and a mapping cannot be closed while they exist.
    root = np.frombuffer(data.toreadonly(), np.uint8)
    values: list[Any] = []
    for leaf in index.leaves:
        storage = leaf.storage
        if isinstance(storage, Inline):
            values.append(storage.value)
            continue
        assert isinstance(storage, Pieces)
        dtype = dtypes.to_numpy(leaf.dtype)
        if storage.encoding == "swapped":
            dtype = dtype.newbyteorder(">")
        pieces = storage.pieces
        if len(pieces) == 1:
            array = np.ndarray(leaf.shape, dtype, root, pieces[0].offset)
            values.append(array[()] if leaf.kind == "numpy_scalar" else array)
        else:
            values.append(_join_pieces(leaf.shape, dtype, storage, root))
    return build_tree(index.structure, values)


def _join_pieces(
    shape: tuple[int, ...], dtype: np.dtype, storage: Pieces, data: np.ndarray
) -> np.ndarray:
    flat = np.empty(sum(piece.length for piece in storage.pieces), np.uint8)
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    at = 0
    for piece in storage.pieces:
        for start in range(0, piece.length, _COPY_BYTES):
            size = min(_COPY_BYTES, piece.length - start)
            offset = piece.offset + start
            copies.append((flat[at : at + size], data[offset : offset + size]))
            at += size
    # In threads: most of the time is spent on first touches of memory pages.
    run_tasks(
        len(copies), threads=default_threads(), make_worker=lambda: lambda i: np.copyto(*copies[i])
    )
    return flat.view(dtype).reshape(shape)
