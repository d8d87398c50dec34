"""The tree in the bytes of a safetensors file, read from memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordwood.dtypes import to_numpy
from cordwood.formats.safetensors.read_index import read_index
from cordwood.index import Index, Inline, Leaf
from cordwood.io.check_files import check_files
from cordwood.io.memory_file import MemoryFile
from cordwood.tree.flatten import build_tree


def read_bytes(raw: bytes) -> tuple[Any, Index]:
    """Return the tree in a file, as plain containers and numpy values, its digests checked."""
    file = MemoryFile(raw, "test.safetensors")
    index = read_index(file)
    for source in index.sources:
        if source.digests is not None:
            bad = check_files([(file, source.digests)])[0]
            if bad:
                raise ValueError(f"damaged blocks: {bad}")
    return build_tree(index.structure, [leaf_value(leaf, raw) for leaf in index.leaves]), index


def leaf_value(leaf: Leaf, raw: bytes) -> Any:
    if isinstance(leaf.storage, Inline):
        return leaf.storage.value
    data = b"".join([raw[p.offset : p.offset + p.length] for p in leaf.storage.pieces])
    if leaf.kind == "bytes":
        return data
    if leaf.kind == "str":
        return data.decode("utf-8", "surrogatepass")
    array = np.frombuffer(data, to_numpy(leaf.dtype)).reshape(leaf.shape)
    return array[()] if leaf.kind == "numpy_scalar" else array
