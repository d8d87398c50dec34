"""From a tree's leaves to the files of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.digests import check_metadata_strings
from cordwood.encoding.leaf_table import LeafType, encode_table
from cordwood.encoding.strict_json import VALUE_KINDS, encode_value
from cordwood.errors import UnsupportedLeafError
from cordwood.formats.zarr.array_metadata import MAX_DIMS, METADATA_NAME, encode_metadata, stored_as
from cordwood.formats.zarr.chunk_grid import chunk_shape, chunks
from cordwood.formats.zarr.tensorstore_index import Entry, encode_item
from cordwood.index import Box, LeafSpec, Structure, jax_order
from cordwood.keypath import format_path
from cordwood.plan.chunk_files import ChunkFile, PlannedFile, SmallFile
from cordwood.sharding.boxes import Cuts

# Of a chunk: a reader of TensorStore's takes the memory of a whole one. Compressed ones are
# also the unit of what threads do at once.
MAX_CHUNK_BYTES: Mapping[str | None, int] = {None: 256 << 20, "zstd": 32 << 20, "blosc": 32 << 20}


class ArrayPlan(NamedTuple):
    """The stored form of one leaf, without its path."""

    leaf: int
    shape: tuple[int, ...]  # as it lies: maybe with an axis more than the leaf
    dtype: str  # as it lies
    chunk_shape: tuple[int, ...]  # of the leaf's own axes
    itemsize: int  # of the leaf
    metadata: bytes
    chunks: tuple[tuple[str, Box], ...]  # names, and parts of the leaf


class ItemPlan(NamedTuple):
    """An item, before its files exist."""

    structure: str  # the text of `cordwood.structure`
    arrays: tuple[ArrayPlan, ...]  # in the order of jax.tree.leaves
    compression: str | None


def plan_save(
    structure: Structure,
    specs: Sequence[LeafSpec],
    cuts: Mapping[int, Cuts],
    *,
    compression: str | None,
    metadata: Mapping[str, str],
    marked: bool,
) -> ItemPlan:
    """Plan the arrays of a tree.

    The same arguments give the same bytes, but for those of compressors.

    Args:
        structure: the containers, with one leaf for each of `specs`, in order.
        specs: the leaves. Of a PRNG key array, shape and dtype are those of its key data.
        cuts: of each leaf that is an array, by position: where its shards begin.
        compression: a key of COMPRESSORS; None for raw chunks.
        metadata: the user's strings.
        marked: whether the index will cover the item.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored in this layout.
        ValueError, TypeError: `metadata` holds what cannot be stored.
    """
    check_metadata_strings(metadata)
    arrays: dict[int, ArrayPlan] = {}
    values: list[Any] = []
    types: dict[LeafType, int] = {}
    leaf_types: list[int] = []
    zarrays: dict[tuple[Any, ...], bytes] = {}
    for i, spec in enumerate(specs):
        if spec.kind in VALUE_KINDS:
            values.append(encode_value(spec.kind, spec.value))
            leaf_type = LeafType(spec.kind, False)
        else:
            stored = stored_as(_checked(spec).dtype)
            logical = spec.dtype if stored.disguised else ""
            leaf_type = LeafType(spec.kind, True, logical, spec.weak_type, spec.prng_impl)
            itemsize = dtypes.itemsize(spec.dtype)
            extents = chunk_shape(
                spec.shape, cuts[i], itemsize=itemsize, max_bytes=MAX_CHUNK_BYTES[compression]
            )
            shape, full = (*spec.shape, *stored.extra), (*extents, *stored.extra)
            key = (shape, full, stored.dtype)
            if key not in zarrays:
                zarrays[key] = encode_metadata(
                    shape, full, stored.dtype, compression, marked=marked
                )
            axes = len(spec.shape)
            parts = tuple(
                [
                    (name, Box(box.start[:axes], box.stop[:axes]))
                    for name, box in chunks(shape, full, ".")
                ]
            )
            arrays[i] = ArrayPlan(i, shape, stored.dtype, extents, itemsize, zarrays[key], parts)
        leaf_types.append(types.setdefault(leaf_type, len(types)))
    order = [i for i in jax_order(structure) if i in arrays]
    text = encode_table(structure, types, leaf_types, (), values)
    return ItemPlan(text, tuple([arrays[i] for i in order]), compression)


def _checked(spec: LeafSpec) -> LeafSpec:
    name = format_path(spec.key_path) or "the tree itself"
    if spec.kind == "opaque":
        raise UnsupportedLeafError(
            f"{name}: a value that only its own format understands cannot be stored here"
        )
    if len(spec.shape) >= MAX_DIMS:
        raise UnsupportedLeafError(
            f"{name}: {len(spec.shape)} dimensions; this layout takes fewer than {MAX_DIMS} "
            "(MAX_DIMS)"
        )
    return spec


def new_files(plan: ItemPlan, paths: Sequence[str]) -> list[PlannedFile]:
    """Return the files of arrays that lie at `paths`: for each array its .zarray, then chunks."""
    files: list[PlannedFile] = []
    for array, path in zip(plan.arrays, paths, strict=True):
        files.append(SmallFile(f"{path}/{METADATA_NAME}", array.metadata))
        files += [
            ChunkFile(f"{path}/{name}", array.leaf, box, array.chunk_shape, array.itemsize)
            for name, box in array.chunks
        ]
    return files


def finish_item(
    plan: ItemPlan, sizes: Sequence[int] | None, digests: bytes, metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Return cordwood's part of the index for an item whose files are written.

    Args:
        plan: the item's.
        sizes: of its chunk files, in bytes; None where all are raw.
        digests: of all its files, one after another.
        metadata: the user's strings.
    """
    return encode_item(
        plan.structure,
        [array.leaf for array in plan.arrays],
        sizes,
        digests,
        metadata,
    )


def entries(plan: ItemPlan, paths: Sequence[str]) -> list[Entry]:
    """Return the arrays as the index lists them."""
    return [
        Entry(path, array.shape, array.dtype)
        for array, path in zip(plan.arrays, paths, strict=True)
    ]
