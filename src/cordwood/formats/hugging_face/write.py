"""Save the arrays of a tree as a directory for the Hugging Face hub, named by their key paths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import UnsupportedLeafError
from cordwood.formats.format_losses import losses_in_tensors, refuse_opaque
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.hugging_face.weight_map import INDEX_NAME, SINGLE_NAME, WRITER
from cordwood.formats.new_directory import put_in_place, require_one_process, require_vacant
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.plan_file import plan_file
from cordwood.formats.table import Format
from cordwood.index import ARRAY_KINDS, LEAF, Index, LeafSpec, Node, size_in_memory
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.page_cache import fits_page_cache
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.message_text import counted, first_names
from cordwood.plan.file_plan import FilePlan
from cordwood.plan.shards_by_size import shards_by_size
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.tree.flatten import FlatTree, flatten
from cordwood.tree.leaves import describe_leaf


def shard_name(number: int, count: int) -> str:
    """Return the name of a file, the first one being number 0.

    >>> shard_name(0, 1), shard_name(1, 12)
    ('model.safetensors', 'model-00002-of-00012.safetensors')
    """
    if count == 1:
        return SINGLE_NAME
    return f"model-{number + 1:05}-of-{count:05}.safetensors"


class HubSave(NamedTuple):
    """A planned save of arrays as a directory for the hub.

    Attributes:
        format: the row of directories for the hub.
        path: the directory.
        shards: the names of the files of arrays, each with its plan.
        beside: the contents of the other files, by name: first the index, if there is one.
        page_cache: True if the files may stay in the page cache.
    """

    format: Format
    path: LocalPath
    shards: Sequence[tuple[str, FilePlan]]
    beside: Mapping[str, bytes]
    page_cache: bool


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the files of a tree, whose arrays alone are written; by one process.

    Args:
        format: the row of directories for the hub.
        location: of the directory, which is made anew.
        tree: the arrays are named by their key paths, joined by dots.
        options: `metadata` is for each file; `format`, which transformers asks for, is "pt" if it
            is not among them. `max_shard_bytes` is of the arrays of one file; a larger array has a
            file of its own. None: all in `model.safetensors`. `files` are written beside them.
        rendezvous: of this process alone; says how long to wait for locks.

    Raises:
        UnsupportedLeafError: safetensors has no name for the dtype of an array; or a caller's tree
            (no `FlatTree`, of which `convert` has accepted the losses) holds more than arrays.
        UnsupportedFormatError: there are several processes.
    """
    path = require_local(location)
    require_one_process(format, path, rendezvous)
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    arrays = [i for i, spec in enumerate(specs) if spec.kind in ARRAY_KINDS]
    names, changed = tensor_names([specs[i].key_path for i in arrays])
    if not isinstance(tree, FlatTree):
        _require_arrays(specs, [specs[arrays[i]].key_path for i in changed])
    named = [_named(specs[i], name) for i, name in zip(arrays, names, strict=True)]
    sizes = [size_in_memory(spec) for spec in named]
    shards = shards_by_size(sizes, options.max_shard_bytes)
    strings = {"format": "pt", **options.metadata}
    plans = []
    for shard in shards:
        keys = tuple([names[i] for i in shard])
        structure = (Node("dict", len(keys), keys), *[LEAF] * len(keys))
        parts = [(arrays[i], None) for i in shard]
        in_file = [named[i] for i in shard]
        plans.append(plan_file(structure, in_file, metadata=strings, parts=parts))
    files = [shard_name(number, len(shards)) for number in range(len(shards))]
    weight_map = {names[i]: file for shard, file in zip(shards, files, strict=True) for i in shard}
    content = {"metadata": {"total_size": sum(sizes), **WRITER}, "weight_map": weight_map}
    index = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()

    beside = {INDEX_NAME: index, **options.files} if len(shards) > 1 else options.files
    save = HubSave(format, path, tuple(zip(files, plans, strict=True)), beside, options.page_cache)
    return SavePlan(flat.leaves, save)


def write(save: HubSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the files into a staging directory, and put it in place."""
    stage = StagingDirectory(save.path, timeout_seconds=rendezvous.timeout_seconds)
    size_bytes = sum([plan.size_bytes for _, plan in save.shards])
    cached = save.page_cache and fits_page_cache(size_bytes)
    with stage.abandon_on_error():
        stage.begin()
        for name, plan in save.shards:
            stage.write_planned(name, plan, leaves, direct=not cached)
        for name, data in save.beside.items():
            stage.create_file(name, [data])
        put_in_place(save.format, stage)


def _require_arrays(specs: Sequence[LeafSpec], confused: Sequence[KeyPath]) -> None:
    """Raise UnsupportedLeafError for leaves that a directory for the hub cannot hold as they are.

    Args:
        specs: all leaves.
        confused: the key paths that other tools would mix up.
    """
    values = [spec.key_path for spec in specs if spec.kind not in ARRAY_KINDS]
    keys = [spec.key_path for spec in specs if spec.kind == "prng_key"]
    for paths, what in (
        (values, "no array, and such a directory holds arrays alone: leave it out of the tree"),
        (keys, "a PRNG key: store jax.random.key_data(key), or leave it out of the tree"),
        (confused, "its name is that of another leaf for the hub's tools: rename its keys"),
    ):
        if paths:
            more = f" (and {counted(len(paths) - 1, 'more leaf', 'more leaves')})"
            raise UnsupportedLeafError(
                f"{path_label(paths[0])}: {what}{more if len(paths) > 1 else ''}"
            )


def _named(spec: LeafSpec, name: str) -> LeafSpec:
    """Return what is written of an array, under its name."""
    if stored_dtype(spec.dtype).is_substitute:
        raise UnsupportedLeafError(
            f"{format_path(spec.key_path)}: safetensors has no {spec.dtype}: cast it, or select "
            "the other leaves"
        )
    return LeafSpec((name,), "numpy", spec.shape, spec.dtype)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError unless there is nothing, or an empty directory."""
    require_vacant(format, require_local(location))


def losses(format: Format, index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return what files of named arrays cannot store, and names that other tools would confuse."""
    del metadata
    refuse_opaque(index, format.name)
    paths = [leaf.key_path for leaf in index.leaves if leaf.kind in ARRAY_KINDS]
    names, changed = tensor_names(paths)
    lost = losses_in_tensors(index)
    if changed:
        shown = first_names([f"{format_path(paths[i])} as {names[i]!r}" for i in changed], 3)
        lost.append(f"{counted(len(changed), 'name')} that the hub's tools would mix up: {shown}")
    return lost
