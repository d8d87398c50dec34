"""Directories of packs put together in memory, as any number of processes would write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.dtypes import to_numpy
from cordwood.encoding.digests import digest_of
from cordwood.formats.packs.cordwood_json import encode_index
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.item import Item
from cordwood.formats.packs.new_packs import new_packs
from cordwood.formats.packs.packed_tree import pack_tree
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import read_index
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.index import HeaderDigest, Index, Inline, Leaf, LeafSpec, Span
from cordwood.io.file_contents import FileContents
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LeafBytes
from cordwood.plan.packs import packs_of_process
from cordwood.sharding.boxes import ShardGrid, shape_of, single_process_grid, slices
from cordwood.storage.local_storage import LocalStorage
from cordwood.tree.flatten import DescribedTree, build_tree, flatten
from cordwood.tree.leaves import describe_leaf, host_array
from tests.block_digests import digests_of

SAVE_ID = "00112233445566ff"
SIZES = LocalStorage.file_sizes


class Directory(NamedTuple):
    """The files of a directory of packs."""

    data: bytes  # of cordwood.json
    files: dict[str, bytes]

    @property
    def items(self) -> dict[str, Item]:
        return parse_items(self.data, name="directory")


def directory_of(
    tree: Any,
    *,
    shards: Mapping[int, ShardGrid] | None = None,
    process_count: int = 1,
    prefix: str = "",
    metadata: Mapping[str, str] | None = None,
    save_id: str = SAVE_ID,
) -> Directory:
    """Return what saves of a tree of host arrays write; `shards` says how leaves are spread."""
    item, files = item_of(
        tree, shards=shards, process_count=process_count, metadata=metadata, save_id=save_id
    )
    return Directory(encode_index({prefix: item}), files)


def item_of(
    tree: Any,
    *,
    shards: Mapping[int, ShardGrid] | None = None,
    process_count: int = 1,
    metadata: Mapping[str, str] | None = None,
    save_id: str = SAVE_ID,
) -> tuple[dict[str, Any], dict[str, bytes]]:
    flat = flatten(tree)
    specs = [describe_leaf(path, leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)]
    arrays = [elements(leaf) for leaf in flat.leaves]
    maps = [
        (shards or {}).get(i, single_process_grid(np.shape(leaf)))
        for i, leaf in enumerate(flat.leaves)
    ]
    packed = pack_tree(
        DescribedTree(flat.structure, tuple(specs), tuple(maps), (), ()),
        process_count=process_count,
        sizes=SIZES,
        metadata=metadata or {},
    )
    files: dict[str, bytes] = {}
    written: list[list[WrittenPack]] = []
    for process in range(process_count):
        done = []
        packs = packs_of_process(packed.assignment, process)
        for pack in new_packs(packed, packs, process, save_id=save_id):
            raw = file_of(pack.plan, arrays)
            files[pack.name] = raw
            header = raw[: pack.plan.header_bytes]
            done.append(
                written_pack(
                    pack.name, len(raw), HeaderDigest(len(header), digest_of(header)), None
                )
            )
        written.append(done)
    return encode_item(packed, written, save_id=save_id), files


def elements(leaf: Any) -> np.ndarray[Any, Any]:
    if isinstance(leaf, str):
        leaf = leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return np.frombuffer(leaf, np.uint8)
    return host_array(leaf)


def file_of(plan: FilePlan, arrays: Sequence[np.ndarray[Any, Any]]) -> bytes:
    ends = [plan.header_bytes]
    for segment in plan.segments:
        assert isinstance(segment, LeafBytes)
        ends.append(ends[-1] + segment.stop - segment.start)
    data = bytearray(plan.size_bytes - plan.header_bytes)
    if data:
        store = FileContents(plan.segments, ends, Leaves(arrays).view)
        store.fill(memoryview(data), 0, 0)
    assert plan.make_header is not None
    return plan.make_header(digests_of(data, start=plan.header_bytes)) + bytes(data)


def tree_in(directory: Directory, prefix: str = "") -> tuple[Any, Index]:
    """Return the tree in plain containers, with values joined from the pieces of its leaves."""
    index = read_index(directory.items[prefix])
    values = [value_of(leaf, index, directory.files) for leaf in index.leaves]
    return build_tree(index.structure, values), index


def value_of(leaf: Leaf, index: Index, files: Mapping[str, bytes]) -> Any:
    if isinstance(leaf.storage, Inline):
        return leaf.storage.value
    dtype = to_numpy(leaf.dtype)
    whole = np.empty(leaf.shape, dtype)
    filled = np.zeros(leaf.shape, np.int64)
    for piece in leaf.storage.pieces:
        raw = files[index.sources[piece.source].name][piece.offset : piece.offset + piece.length]
        part = np.frombuffer(raw, dtype)
        if isinstance(piece.where, Span):
            assert piece.where == (0, whole.size)
            whole[...] = part.reshape(leaf.shape)
            filled += 1
        else:
            whole[slices(piece.where)] = part.reshape(shape_of(piece.where))
            filled[slices(piece.where)] += 1
    assert (filled == 1).all()
    if leaf.kind == "bytes":
        return whole.tobytes()
    if leaf.kind == "str":
        return whole.tobytes().decode("utf-8", "surrogatepass")
    return whole[()] if leaf.kind == "numpy_scalar" else whole


__all__ = ["SAVE_ID", "SIZES", "Directory", "LeafSpec", "directory_of", "item_of", "tree_in"]
