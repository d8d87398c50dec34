"""safetensors files put together in memory from their plans, and taken apart again."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from cordwood.dtypes import to_numpy
from cordwood.encoding.digests import digests_of
from cordwood.formats.safetensors.header import plan_save
from cordwood.formats.safetensors.read_index import read_index
from cordwood.index import Index, Inline, Leaf
from cordwood.io.check_files import check_files
from cordwood.io.open_files import MemoryFile
from cordwood.plan.file_plan import LeafBytes
from cordwood.tree.flatten import build_tree, flatten
from cordwood.tree.leaves import describe_leaf, host_array


def file_bytes(tree: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes that `save` would write."""
    flat = flatten(tree)
    specs = [describe_leaf(path, leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)]
    plan = plan_save(flat.structure, specs, metadata=metadata or {})
    chunks = []
    for segment in plan.segments:
        assert isinstance(segment, LeafBytes)
        data = element_bytes(flat.leaves[segment.leaf])
        chunks.append(data[segment.start : segment.stop])
    assert plan.make_header is not None
    header = plan.make_header(digests_of(b"".join(chunks), start=plan.header_bytes))
    assert len(header) == plan.header_bytes
    raw = header + b"".join(chunks)
    assert len(raw) == plan.size_bytes
    return raw


def element_bytes(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return leaf
    array = host_array(leaf)
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return equal(a.real, b.real) and equal(a.imag, b.imag)
    return bool(a == b)


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


def header_of(raw: bytes) -> dict[str, Any]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length])


def with_header(header: Any, data: bytes = b"") -> bytes:
    """Return a file of any header: a JSON value, or its text."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded + data
