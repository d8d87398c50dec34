"""Save into the zarr layout, and read it without the loader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.dtypes import to_numpy
from cordwood.formats.zarr.plan_item import plan_item
from cordwood.formats.zarr.read_index import read_index
from cordwood.formats.zarr.write import save_item
from cordwood.index import Box, Encoded, Index, Inline, Leaf
from cordwood.io.check_files import check_files
from cordwood.io.chunk_codecs import decode_chunk
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.load_plan import EncodedChunk, Scatter
from cordwood.processes.key_value_store import SINGLE_PROCESS
from cordwood.processes.rendezvous import Rendezvous
from cordwood.sharding.boxes import shape_of, slices
from cordwood.storage.local_directory import LocalDirectory
from cordwood.tree.flatten import build_tree

__all__ = ["index_at", "read_tree", "save_tree", "stored_index"]


def save_tree(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    prefix: str = "",
    compression: str | None = None,
    metadata: dict[str, str] | None = None,
    covered: bool = True,
) -> None:
    rendezvous = Rendezvous(SINGLE_PROCESS, "save", timeout_seconds=1, silence_seconds=1)
    item = plan_item(
        tree,
        prefix=prefix,
        compression=compression,
        metadata=metadata or {},
        covered=covered,
        rendezvous=rendezvous,
    )
    save_item(path, item, Leaves(item.tree.leaves), rendezvous)


def index_at(path: str | os.PathLike[str], prefix: str | None = None) -> Index:
    with LocalDirectory(path) as directory:
        return read_index(directory, prefix)


def stored_index(path: Path) -> Any:
    return json.loads((path / "tensorstore_index.json").read_text())


def read_tree(path: str | os.PathLike[str], prefix: str | None = None) -> Any:
    """Return the verified tree in plain containers; fail if a source has no digests."""
    with LocalDirectory(path) as directory:
        index = read_index(directory, prefix)
        for source in index.sources:
            assert source.digests is not None
            with directory.file(source.name, source.size_bytes) as file:
                assert check_files([(file, source.digests)])[0] == []
        return build_tree(
            index.structure, [_value(directory, index, leaf) for leaf in index.leaves]
        )


def _value(directory: LocalDirectory, index: Index, leaf: Leaf) -> Any:
    storage = leaf.storage
    if isinstance(storage, Inline):
        return storage.value
    dtype = to_numpy(leaf.dtype)
    array = np.empty(leaf.shape, dtype)
    for where, source, offset, length in storage.pieces:
        assert isinstance(where, Box)
        name, size = index.sources[source][:2]
        data = memoryview(directory.file(name, size).read(offset, length))
        shape = shape_of(where)
        if isinstance(storage, Encoded):
            shape = storage.chunk_shape
            spread = Scatter(shape, dtype.itemsize, ())
            chunk = EncodedChunk(0, offset, length, storage.codec, leaf.dtype, spread)
            data = decode_chunk(chunk, data, ScratchBuffer(), name=name)
        held = np.frombuffer(data, dtype).reshape(shape)
        array[slices(where)] = held[tuple(slice(size) for size in shape_of(where))]
    return array[()] if leaf.kind == "numpy_scalar" else array
