"""Write a directory for the Hugging Face hub: safetensors files of at most some size, and an index.

https://huggingface.co/docs/huggingface_hub/package_reference/serialization (names of the files)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordwood.encoding.leaf_table import tensor_names
from cordwood.errors import NotACheckpointError, UnsupportedLeafError
from cordwood.formats.hugging_face.open import INDEX_NAME, encode_weight_map, shard_name
from cordwood.formats.safetensors.header import stored_dtype
from cordwood.formats.safetensors.plan_save import plan_save as plan_file
from cordwood.formats.save_plan import SaveOptions, SavePlan, losses_in_tensors, refuse_opaque
from cordwood.index import ARRAY_KINDS, Index, LeafSpec, size_in_memory
from cordwood.io.leaves_to_write import Leaves
from cordwood.keypath import format_path
from cordwood.message_text import counted, first_names
from cordwood.plan.assign_to_files import shards_by_size
from cordwood.plan.file_plan import FilePlan
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.atomic_file import atomic_file
from cordwood.storage.directories import list_names
from cordwood.storage.paths import kind_at
from cordwood.storage.staging_directory import StagingDirectory
from cordwood.storage.write_file import fill_file
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf
from cordwood.tree.structure import LEAF, Node


def plan_save(
    path: str | os.PathLike[str], tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the files of a tree, whose arrays alone are written; by one process.

    Args:
        path: of the directory, which is made anew.
        tree: the arrays are named by their key paths, joined by dots.
        options: `metadata` is for each file; `format`, which transformers asks for, is "pt" if it
            is not among them. `max_shard_bytes` is of the arrays of one file; a larger array has a
            file of its own. None: all in `model.safetensors`.
        rendezvous: of this process alone; says how long to wait for locks.

    Raises:
        UnsupportedLeafError: safetensors has no name for the dtype of an array.
    """
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    arrays = [i for i, spec in enumerate(specs) if spec.kind in ARRAY_KINDS]
    names = tensor_names([specs[i].key_path for i in arrays]).names
    named = [_named(specs[i], name) for i, name in zip(arrays, names, strict=True)]
    sizes = [size_in_memory(spec) for spec in named]
    shards = shards_by_size(sizes, options.max_shard_bytes)
    strings = {"format": "pt", **options.metadata}
    plans = [
        _plan([named[i] for i in shard], [arrays[i] for i in shard], strings) for shard in shards
    ]
    files = [shard_name(number, len(shards)) for number in range(len(shards))]
    weight_map = {names[i]: file for shard, file in zip(shards, files, strict=True) for i in shard}
    index = encode_weight_map(weight_map, total_bytes=sum(sizes)) if len(shards) > 1 else None

    def write(leaves: Leaves) -> None:
        stage = StagingDirectory(path, timeout_seconds=rendezvous.timeout_seconds)
        with stage.abandon_on_error():
            stage.begin()
            for file, plan in zip(files, plans, strict=True):
                with atomic_file(f"{stage.path}/{file}") as temporary:
                    fill_file(temporary, plan, leaves)
                stage.mark_unsynced(file)
            if index is not None:
                stage.write(INDEX_NAME, [index])
            stage.commit(_require_empty)

    return SavePlan(flat.leaves, write)


def _named(spec: LeafSpec, name: str) -> LeafSpec:
    """Return what is written of an array, under its name."""
    if stored_dtype(spec.dtype).is_substitute:
        raise UnsupportedLeafError(
            f"{format_path(spec.key_path)}: safetensors has no {spec.dtype}: cast it, or select "
            "the other leaves"
        )
    return LeafSpec((name,), "numpy", spec.shape, spec.dtype)


def _plan(
    specs: Sequence[LeafSpec], leaves: Sequence[int], metadata: Mapping[str, str]
) -> FilePlan:
    names = tuple([str(spec.key_path[0]) for spec in specs])
    structure = (Node("dict", len(names), names), *[LEAF] * len(names))
    parts = [(leaf, None) for leaf in leaves]
    return plan_file(structure, specs, metadata=metadata, parts=parts)


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError unless there is nothing at `path`, or an empty directory."""
    what = kind_at(path)
    if what != "nothing" and (what != "a folder" or list_names(os.fspath(path))):
        raise NotACheckpointError(
            f"{os.fspath(path)} exists: a directory for the hub is not replaced or added to; "
            "remove it, or write to another path"
        )


def _require_empty(old: str | None) -> Callable[[str], None]:
    """Return what to do with the directory that was replaced; raise unless it was empty."""
    if old is not None:
        refuse_existing(old)
    return lambda _: None


def losses(index: Index, format_name: str) -> list[str]:
    """Return what files of named arrays cannot store, and names that other tools would confuse."""
    refuse_opaque(index, format_name)
    return [*losses_in_tensors(index), *_changed_names(index)]


def _changed_names(index: Index) -> list[str]:
    """Return a line about the arrays whose dotted names other tools could not tell apart."""
    paths = [leaf.key_path for leaf in index.leaves if leaf.kind in ARRAY_KINDS]
    names, changed = tensor_names(paths)
    if not changed:
        return []
    shown = first_names([f"{format_path(paths[i])} as {names[i]!r}" for i in changed], 3)
    return [f"{counted(len(changed), 'name')} that the hub's tools would mix up: {shown}"]
