"""Write a directory for the Hugging Face hub: safetensors files of at most some size, and an index.

https://huggingface.co/docs/huggingface_hub/package_reference/serialization (names of the files)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from cordwood import dtypes
from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import NotACheckpointError, UnsupportedLeafError
from cordwood.formats.directory_formats import Layout
from cordwood.formats.hugging_face.read_index import INDEX_NAME, encode_weight_map, shard_name
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.plan_save import plan_save
from cordwood.formats.save_plan import Fetch, Job, elements_of
from cordwood.index import ARRAY_KINDS, LeafSpec
from cordwood.io.uninterruptible import StopCheck, run_uninterruptible
from cordwood.io.write_file import fill_file
from cordwood.keypath import format_path
from cordwood.plan.file_assignment import shards_by_size
from cordwood.plan.file_plan import FilePlan
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import list_names
from cordwood.storage.file_transaction import atomic_file
from cordwood.storage.path_kind import kind_at
from cordwood.storage.staging_directory import StagingDirectory
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf
from cordwood.tree.structure import LEAF, Node

HUGGING_FACE = Layout(
    "hugging_face", INDEX_NAME, __name__, "a directory for the Hugging Face hub", writable=False
)


def plan_job(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    prefix: str | None,
    metadata: Mapping[str, str],
    rendezvous: Rendezvous,
    max_shard_bytes: int | None = None,
) -> Job:
    """Plan the files of a tree, whose arrays alone are written; by one process.

    Args:
        path: of the directory, which is made anew.
        tree: the arrays are named by their key paths, joined by dots.
        prefix: None.
        metadata: strings for each file; `format`, which transformers asks for, is "pt" if it is
            not among them.
        rendezvous: of this process alone; says how long to wait for locks.
        max_shard_bytes: of the arrays of one file; a larger array has a file of its own. None:
            all in `model.safetensors`.

    Raises:
        UnsupportedLeafError: safetensors has no name for the dtype of an array.
    """
    assert prefix is None
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    arrays = [i for i, spec in enumerate(specs) if spec.kind in ARRAY_KINDS]
    names = tensor_names([specs[i].key_path for i in arrays]).names
    named = [_named(specs[i], name) for i, name in zip(arrays, names, strict=True)]
    sizes = [prod(spec.shape) * dtypes.itemsize(spec.dtype) for spec in named]
    shards = shards_by_size(sizes, max_shard_bytes)
    strings = {"format": "pt", **metadata}
    plans = [_plan([named[i] for i in shard], strings) for shard in shards]
    files = [shard_name(number, len(shards)) for number in range(len(shards))]
    weight_map = {names[i]: file for shard, file in zip(shards, files, strict=True) for i in shard}
    index = encode_weight_map(weight_map, total_bytes=sum(sizes)) if len(shards) > 1 else None

    def write(fetch: Fetch) -> None:
        def run(check: StopCheck) -> None:
            stage = StagingDirectory(path, timeout_seconds=rendezvous.timeout_seconds)
            with stage.abandon_on_error():
                stage.begin()
                for file, plan, shard in zip(files, plans, shards, strict=True):
                    leaves = [arrays[i] for i in shard]
                    with atomic_file(f"{stage.path}/{file}") as temporary:
                        fill_file(temporary, plan, partial(_elements, fetch, leaves), check)
                    stage.mark_unsynced(file)
                if index is not None:
                    stage.write(INDEX_NAME, [index])
                stage.commit(_require_empty, check)

        run_uninterruptible(run)

    return Job(flat.leaves, write)


def _elements(fetch: Fetch, leaves: Sequence[int], number: int) -> Any:
    return elements_of(fetch(leaves[number]))


def _named(spec: LeafSpec, name: str) -> LeafSpec:
    """Return what is written of an array, under its name."""
    if stored_dtype(spec.dtype).disguised:
        raise UnsupportedLeafError(
            f"{format_path(spec.key_path)}: safetensors has no {spec.dtype}: cast it, or select "
            "the other leaves"
        )
    return LeafSpec((name,), "numpy", spec.shape, spec.dtype)


def _plan(specs: Sequence[LeafSpec], metadata: Mapping[str, str]) -> FilePlan:
    names = tuple([str(spec.key_path[0]) for spec in specs])
    structure = (Node("dict", len(names), names), *[LEAF] * len(names))
    return plan_save(structure, specs, metadata=metadata)


def refuse_foreign(path: str | os.PathLike[str]) -> None:
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
        refuse_foreign(old)
    return lambda _: None
