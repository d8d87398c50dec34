"""The plan of an item: the stored form of a tree's arrays, its files, and who writes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.cordwood_metadata import check_metadata_strings
from cordwood.encoding.cordwood_structure import encode_structure
from cordwood.encoding.json_leaf_types import LeafType
from cordwood.encoding.json_values import VALUE_KINDS, encode_value
from cordwood.formats.format_losses import unstorable_error
from cordwood.formats.zarr.array_metadata import MAX_DIMS
from cordwood.formats.zarr.array_paths import array_paths
from cordwood.formats.zarr.chunk_grid import chunk_shape, chunks
from cordwood.formats.zarr.metadata_v2 import COMPRESSORS, METADATA_NAME, encode_metadata
from cordwood.formats.zarr.zarr_dtypes import stored_as
from cordwood.index import ARRAY_KINDS, Box, LeafSpec, jax_order
from cordwood.keypath import KeyPath
from cordwood.plan.cells import merge_small_shards
from cordwood.plan.chunk_files import assign_chunk_files
from cordwood.plan.file_plan import ChunkFile, PlannedFile, SmallFile
from cordwood.processes.rendezvous import Rendezvous
from cordwood.sharding.boxes import Cuts
from cordwood.tree.flatten import DescribedTree, describe_tree

# Of a chunk: a reader of TensorStore's takes the memory of a whole one. Compressed ones are
# also the unit of what threads do at once.
MAX_CHUNK_BYTES: Mapping[str | None, int] = {
    None: 256 << 20,
    "zstd": 32 << 20,
    "blosc": 32 << 20,
    "archive": 32 << 20,
}


class ArrayPlan(NamedTuple):
    """The stored form of one leaf, without its path."""

    leaf: int
    shape: tuple[int, ...]  # as stored: maybe with an axis more than the leaf
    dtype: str  # as stored
    chunk_shape: tuple[int, ...]  # of the leaf's own axes
    itemsize: int  # of the leaf
    metadata: bytes
    chunks: tuple[tuple[str, Box], ...]  # names, and parts of the leaf


class ItemPlan(NamedTuple):
    """An item, before its files exist. Nothing of it depends on the caller's containers."""

    tree: DescribedTree  # of the caller's leaves
    prefix: str
    metadata: Mapping[str, str]
    compression: str | None
    covered: bool  # the index is to say what its files must be
    structure: str  # the text of `cordwood.structure`
    arrays: Sequence[ArrayPlan]  # in the order of jax.tree.leaves
    key_paths: Sequence[KeyPath]  # of the arrays
    paths: Sequence[str]  # of the arrays, if no other item is in the way
    files: Sequence[PlannedFile]  # for each array its .zarray, then its chunks
    writers: Sequence[int]  # of each file, the process that writes it


def plan_item(
    tree: Any,
    *,
    prefix: str,
    compression: str | None,
    metadata: Mapping[str, str],
    covered: bool,
    rendezvous: Rendezvous,
) -> ItemPlan:
    """Flatten a tree, plan its arrays, and assign their files to the processes.

    The same arguments give the same bytes, but for those of compressors.

    Args:
        tree: what to save.
        prefix: the item's; '' for none.
        compression: "zstd", "blosc", "archive" or None.
        metadata: the user's strings.
        covered: False leaves the item out of the index.
        rendezvous: of the processes that save it.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored in this layout; names its key path.
        ValueError, TypeError: the compression, or what `metadata` holds, is none that is stored.
    """
    if compression is not None and compression not in COMPRESSORS:
        names = ", ".join(map(repr, COMPRESSORS))
        raise ValueError(f"compression={compression!r}: expected None or one of {names}")
    described = describe_tree(tree, process=rendezvous.index, process_count=rendezvous.count)
    specs = described.specs
    shards = [
        merge_small_shards(each, dtypes.itemsize(spec.dtype)) if spec.kind in ARRAY_KINDS else each
        for spec, each in zip(specs, described.shards, strict=True)
    ]
    check_metadata_strings(metadata)
    arrays: dict[int, ArrayPlan] = {}
    values: list[object] = []
    types: dict[LeafType, int] = {}
    leaf_types: list[int] = []
    zarrays: dict[tuple[object, ...], bytes] = {}
    for i, spec in enumerate(specs):
        if spec.kind in VALUE_KINDS:
            values.append(encode_value(spec.kind, spec.value))
            leaf_type = LeafType(spec.kind, False)
        else:
            if spec.kind == "opaque" or len(spec.shape) >= MAX_DIMS:
                raise unstorable_error(spec, MAX_DIMS, "this layout takes")
            logical = spec.dtype if stored_as(spec.dtype).disguised else ""
            leaf_type = LeafType(spec.kind, True, logical, spec.weak_type, spec.prng_impl)
            arrays[i] = plan_array(i, spec, shards[i].cuts, compression, zarrays, marked=covered)
        leaf_types.append(types.setdefault(leaf_type, len(types)))
    ordered = [arrays[i] for i in jax_order(described.structure) if i in arrays]
    key_paths = [specs[array.leaf].key_path for array in ordered]
    paths = array_paths(key_paths, prefix)
    in_order = zip(ordered, paths, strict=True)
    files = [file for array, path in in_order for file in files_of_array(array, path)]
    return ItemPlan(
        described,
        prefix,
        metadata,
        compression,
        covered,
        encode_structure(described.structure, types, leaf_types, (), values),
        ordered,
        key_paths,
        paths,
        files,
        assign_chunk_files(files, shards, process_count=rendezvous.count),
    )


def plan_array(
    leaf: int,
    spec: LeafSpec,
    cuts: Cuts,
    compression: str | None,
    zarrays: dict[tuple[object, ...], bytes],
    *,
    marked: bool,
) -> ArrayPlan:
    """Return the plan of an array.

    Args:
        leaf: its position in the tree.
        spec: its type.
        cuts: the beginnings of its shards along each axis.
        compression: "zstd", "blosc", "archive" or None.
        zarrays: keeps the metadata of arrays that are alike.
        marked: its metadata is to have cordwood's mark.
    """
    stored = stored_as(spec.dtype)
    itemsize = dtypes.itemsize(spec.dtype)
    extents = chunk_shape(
        spec.shape, cuts, itemsize=itemsize, max_bytes=MAX_CHUNK_BYTES[compression]
    )
    shape, full = (*spec.shape, *stored.extra), (*extents, *stored.extra)
    key = (shape, full, stored.dtype)
    if key not in zarrays:
        zarrays[key] = encode_metadata(shape, full, stored.dtype, compression, marked=marked)
    axes = len(spec.shape)
    parts = tuple(
        [(name, Box(box.start[:axes], box.stop[:axes])) for name, box in chunks(shape, full, ".")]
    )
    return ArrayPlan(leaf, shape, stored.dtype, extents, itemsize, zarrays[key], parts)


def files_of_array(array: ArrayPlan, path: str) -> list[PlannedFile]:
    """Return the files of an array at a path; "" is the directory itself."""
    prefix = f"{path}/" if path else ""
    return [
        SmallFile(prefix + METADATA_NAME, array.metadata),
        *[
            ChunkFile(prefix + name, array.leaf, box, array.chunk_shape, array.itemsize)
            for name, box in array.chunks
        ],
    ]
