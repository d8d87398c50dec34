"""The values of a Flax msgpack file, as views into the buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.index import Encoding, Index, Inline, Pieces
from cordwood.io.threads import default_threads, run_tasks
from cordwood.tree.flatten import build_tree

_COPY_BYTES = 16 << 20


def restore_state(index: Index, data: memoryview) -> Any:
    """Return the state dict that `data` encodes.

    Arrays are read-only views into `data` and keep it alive. An array that is stored in several
    pieces is joined in memory of its own and is writable.
    """
    # An array, not the memoryview: views of an array hold its buffer, so a bytearray cannot be
    # resized and a mapping cannot be closed while they exist.
    root = np.frombuffer(data.toreadonly(), np.uint8)
    numpy_dtypes: dict[tuple[str, Encoding], np.dtype[Any]] = {}
    values: list[Any] = []
    for leaf in index.leaves:
        storage = leaf.storage
        if isinstance(storage, Inline):
            values.append(storage.value)
            continue
        assert isinstance(storage, Pieces)
        key = (leaf.dtype, storage.encoding)
        dtype = numpy_dtypes.get(key)
        if dtype is None:
            dtype = dtypes.to_numpy(leaf.dtype)
            if storage.encoding == "swapped":
                dtype = dtype.newbyteorder(">")
            numpy_dtypes[key] = dtype
        pieces = storage.pieces
        if len(pieces) == 1:
            array = np.ndarray(leaf.shape, dtype, root, pieces[0].offset)
            values.append(array[()] if leaf.kind == "numpy_scalar" else array)
        else:
            values.append(_join_pieces(leaf.shape, dtype, storage, root))
    return build_tree(index.structure, values)


def _join_pieces(
    shape: tuple[int, ...], dtype: np.dtype[Any], storage: Pieces, data: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    flat = np.empty(sum(piece.length for piece in storage.pieces), np.uint8)
    copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
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
