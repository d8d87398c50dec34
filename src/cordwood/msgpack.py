"""Flax's and eFormer's calls for msgpack bytes and files of them.

Names, arguments and bytes are those of `flax.serialization` and `eformer.pytree`; what differs is
that nothing is copied that need not be, that what cannot be read back is refused with its key
path, that files are written durably, and that arrays of big-endian numbers keep their values.

`MAX_CHUNK_SIZE` is read at each call: arrays of more bytes than this are stored in pieces.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.flax_msgpack.restore_values import restore_state
from cordwood.formats.flax_msgpack.state_buffers import (
    ChunkSizeModule,
    plan_buffers,
    plan_state,
)
from cordwood.formats.flax_msgpack.value_size import ValueSize
from cordwood.io.gc_pause import gc_paused
from cordwood.state_dict.state_dicts import from_state_dict, state_and_problems, to_state_dict
from cordwood.state_dict.tree_summary import summarize_tree
from cordwood.storage.urls import expand_home
from cordwood.tree.leaves import host_array
from cordwood.tree.long_double import without_padding

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
    "plan_buffers",
    "plan_state",
    "save_to_file",
    "to_buffers",
    "to_bytes",
    "to_compressed_bytes",
    "validate_serializable",
]

MAX_CHUNK_SIZE: int
sys.modules[__name__].__class__ = ChunkSizeModule

Encoded = bytes | bytearray | memoryview


def to_buffers(target: Any) -> list[memoryview]:
    """The bytes of `to_bytes`, as views one after another: for sockets and `os.writev`.

    Arrays are not copied, unless they are strided, big-endian, long doubles, on an accelerator,
    or sharded:
    the views keep the arrays' memory alive, and changing an array changes them.

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
        return list(plan_buffers(plan, arrays.__getitem__))


def to_bytes(target: Any) -> bytes:
    """A tree as Flax's msgpack bytes.

    Args:
        target: any tree that `to_state_dict` takes. Neither it nor a dict that a registered
            handler returns is changed.

    Returns:
        The bytes that `flax.serialization.to_bytes` gives (but for the padding of long doubles:
        zeros here, anything there).

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.

    Example:
        >>> from_bytes({"w": None}, to_bytes({"w": np.arange(3)}))
        {'w': array([0, 1, 2])}
    """
    return b"".join(to_buffers(target))


def from_bytes(target: Any, encoded_bytes: Encoded) -> Any:
    """A tree with the structure of `target` and the leaves of `encoded_bytes`.

    Args:
        target: gives the structure; its leaves are not used. None: the state dict is returned.
        encoded_bytes: what `to_bytes`, or Flax, gave.

    Returns:
        New containers. Arrays are numpy: read-only views into `encoded_bytes`, as those of
        `msgpack_restore`.

    Raises:
        FormatError: the bytes are damaged; the message names the offset.
        MismatchError: they do not have the structure of `target`.
    """
    with gc_paused():
        return from_state_dict(target, msgpack_restore(encoded_bytes))


def msgpack_serialize(pytree: Any, in_place: bool = False) -> bytes:
    """Nested dicts and lists as Flax's msgpack bytes.

    Args:
        pytree: dicts and lists of arrays, numpy and Python scalars, str, bytes and None; it is
            never changed. For other containers see `to_bytes`.
        in_place: whether dicts keep their order, as they do in Flax when it may change `pytree`.
            Otherwise keys are sorted, where they can be compared.

    Returns:
        The bytes that `flax.serialization.msgpack_serialize` gives.

    Raises:
        UnsupportedLeafError: a value cannot be stored; the message names its key path.
    """
    plan, arrays = plan_state(pytree, sort_keys=not in_place)
    return b"".join(plan_buffers(plan, arrays.__getitem__))


def msgpack_restore(encoded_pytree: Encoded) -> Any:
    """The values in Flax's msgpack bytes.

    Args:
        encoded_pytree: bytes, or anything that has their memory, as an mmap.

    Returns:
        Nested dicts and lists (and tuples, from Orbax). Arrays are numpy: read-only views into
        `encoded_pytree`, which keep it alive; arrays that were stored in pieces are put together
        in memory of their own and are writable.

    Raises:
        FormatError: it is not such bytes, or damaged; the message names the offset.

    Example:
        >>> msgpack_restore(msgpack_serialize({"w": np.ones(2), "step": 7}))
        {'step': 7, 'w': array([1., 1.])}
    """
    from cordwood.storage.open_files import MemoryFile

    file = MemoryFile(encoded_pytree)
    return restore_state(read_index(file), file.map())


def save_to_file(target: Any, filepath: str | os.PathLike[str]) -> None:
    """Write the bytes of `to_bytes` to a file, durably and atomically.

    It replaces whatever file is at the path, as eFormer's does, a checkpoint or not (`save`
    refuses to replace a file that is none).

    Whatever goes wrong, the old file stays whole; when this returns, a power cut cannot lose the
    new one. Missing directories are made, once the tree is known to be storable.

    Args:
        target: any tree that `to_state_dict` takes.
        filepath: where to.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.
        OSError: the system refused.
    """
    from cordwood.io.write_file import write_file

    plan, leaves = plan_state(to_state_dict(target))
    write_file(expand_home(filepath), plan, lambda i: without_padding(host_array(leaves[i])))


def load_from_file(target: Any, filepath: str | os.PathLike[str]) -> Any:
    """A tree with the structure of `target` and the leaves of a file.

    Args:
        target: gives the structure; its leaves are not used. None: the state dict is returned.
        filepath: a file that `save_to_file`, or eFormer, wrote.

    Returns:
        New containers. Arrays are numpy, own their memory, and are writable.

    Raises:
        FormatError: the file is damaged; the message names the offset.
        MismatchError: it does not have the structure of `target`.
        OSError: it cannot be read.
    """
    from cordwood.loading.restore import restore, target_as_saved
    from cordwood.storage.open_files import LocalFile
    from cordwood.tree.flatten import build_tree

    with LocalFile(expand_home(filepath)) as file:
        index = read_index(file)
        targets = [target_as_saved(leaf, None) for leaf in index.leaves]
        values = restore(index, [file], targets, mmap=False, verify=False, alias=False)
    return from_state_dict(target, build_tree(index.structure, values))


def compress_bytes(data: Encoded) -> bytes:
    """Bytes as a gzip stream, level 6; the same bytes give the same stream, whatever the time."""
    from cordwood.formats.compressed.compress import compress

    return b"".join(compress([data], "gz"))


def decompress_bytes(data: Encoded, *, max_bytes: int | None = None) -> bytes:
    """The bytes of a gzip stream.

    Args:
        data: what `compress_bytes`, or any gzip, wrote.
        max_bytes: how many to accept; None: 4 GiB, or 1100 times the size of `data`.

    Raises:
        CompressedDataError: it is damaged (also a `gzip.BadGzipFile`).
        TruncatedError: it ends too early (also an `EOFError`).
        LimitError: it holds more than `max_bytes`.

    Example:
        >>> decompress_bytes(compress_bytes(b"cordwood"))
        b'cordwood'
    """
    return bytes(_decompressed(data, max_bytes))


def _decompressed(
    data: Encoded, max_bytes: int | None, outline: ValueSize | None = None
) -> memoryview:
    from cordwood.formats.compressed.decompress import decompress
    from cordwood.storage.open_files import MemoryFile

    return decompress(MemoryFile(data), "gz", max_bytes=max_bytes, outline=outline).map()


def to_compressed_bytes(target: Any) -> bytes:
    """The bytes of `to_bytes` as a gzip stream; see `compress_bytes`."""
    from cordwood.formats.compressed.compress import compress

    return b"".join(compress(to_buffers(target), "gz"))


def from_compressed_bytes(
    target: Any, compressed_data: Encoded, *, max_bytes: int | None = None
) -> Any:
    """Return what `from_bytes` gives for the bytes of a gzip stream; see `decompress_bytes`."""
    return from_bytes(target, _decompressed(compressed_data, max_bytes, ValueSize()))


def validate_serializable(pytree: Any) -> tuple[bool, list[str]]:
    """Whether `to_bytes` can store a tree, and if not, why not.

    Works on anything; nothing is copied.

    Returns:
        Whether it can; and one line for each problem, with its key path and what to do.

    Example:
        >>> validate_serializable({"w": np.ones(2), "tags": {"a"}})
        (False, ['tags: a set cannot be stored; store a sorted list'])
    """
    state, problems = state_and_problems(pytree)
    plan_state(state, problems=problems)
    return not problems, [str(problem) for problem in problems]


def get_serialization_info(pytree: Any) -> dict[str, Any]:
    """What a tree holds. Works on anything; nothing is copied.

    Returns:
        num_leaves: how many leaves, None not counted.
        tree_structure: of jax, as a str, where jax is loaded and knows the tree; else its key
            paths, or what is wrong with it.
        total_elements: of all arrays; other leaves count as one.
        memory_bytes: of all arrays, scalars, str and bytes.
        is_serializable: whether `to_bytes` can store it.
        dtypes: of all arrays, sorted.

    Example:
        >>> info = get_serialization_info({"w": np.ones((2, 3)), "step": 7})
        >>> info["num_leaves"], info["total_elements"], info["memory_bytes"], info["dtypes"]
        (2, 7, 56, ['float64'])
    """
    return {**summarize_tree(pytree), "is_serializable": validate_serializable(pytree)[0]}
