"""A tree, taken apart and planned for the zarr layout, before anything of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.formats.zarr.array_metadata import COMPRESSORS
from cordwood.formats.zarr.array_paths import array_paths
from cordwood.formats.zarr.plan_save import ItemPlan, finish_item, new_files, plan_save
from cordwood.index import ARRAY_KINDS
from cordwood.keypath import KeyPath
from cordwood.plan.assign_to_files import assign_chunk_files, merge_small_shards
from cordwood.plan.chunk_files import ChunkFile, PlannedFile
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.write_chunk_files import WrittenFile
from cordwood.tree.flatten import DescribedTree, describe_tree


class Draft(NamedTuple):
    """A tree, taken apart and planned. Nothing of it depends on the caller's containers."""

    plan: ItemPlan
    key_paths: Sequence[KeyPath]  # of its arrays
    tree: DescribedTree  # of the caller's leaves
    prefix: str
    metadata: Mapping[str, str]
    covered: bool  # the index is to say what its files must be
    paths: list[str]  # of its arrays, if no other item is in the way
    files: Sequence[PlannedFile]
    writers: Sequence[int]  # of each file, the process that writes it


def draft(
    tree: Any,
    *,
    prefix: str,
    compression: str | None,
    metadata: Mapping[str, str],
    covered: bool,
    rendezvous: Rendezvous,
) -> Draft:
    """Take a tree apart, plan its arrays, and share their files out.

    Args:
        tree: what to save.
        prefix: the item's; '' for none.
        compression: "zstd", "blosc" or None.
        metadata: the user's strings.
        covered: False leaves the item out of the index.
        rendezvous: of the processes that save it.

    Raises UnsupportedLeafError, which names the leaf's key path; ValueError for the options.
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
    cuts = {i: shards[i].cuts for i, spec in enumerate(specs) if spec.kind in ARRAY_KINDS}
    plan = plan_save(
        described.structure, specs, cuts, compression=compression, metadata=metadata, marked=covered
    )
    key_paths = [specs[array.leaf].key_path for array in plan.arrays]
    paths = array_paths(key_paths, prefix)
    files = new_files(plan, paths)
    shared = assign_chunk_files(files, shards, process_count=rendezvous.count)
    return Draft(plan, key_paths, described, prefix, metadata, covered, paths, files, shared)


def finish(item: Draft, written: Sequence[WrittenFile]) -> dict[str, Any] | None:
    """Return cordwood's part of the index, if there is to be one."""
    if not item.covered:
        return None
    sizes = None
    if item.plan.compression is not None:
        files = zip(item.files, written, strict=True)
        sizes = [
            written_file.size_bytes for file, written_file in files if isinstance(file, ChunkFile)
        ]
    digests = b"".join([file.digests for file in written])
    return finish_item(item.plan, sizes, digests, item.metadata)
