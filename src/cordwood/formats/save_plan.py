"""The plan of a save, the description of a tree from which formats make it, and what gets lost.

The elements of leaves are no part of a plan: they come from the `Leaves` that it is given later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import UnsupportedLeafError
from cordwood.formats.format_protocol import WritableFormat
from cordwood.index import ARRAY_KINDS, Index, LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.keypath import DictKey, Key, KeyPath, format_path, path_label
from cordwood.message_text import counted, first_names
from cordwood.processes.collective_save import fingerprints
from cordwood.processes.rendezvous import Rendezvous
from cordwood.sharding.boxes import ShardGrid, shard_grid, single_process_grid
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf, is_jax_array
from cordwood.tree.structure import Structure

_SHOWN = 3  # leaves of a kind that a format cannot store, named in a message


class Linking:
    """The link of one save to an older checkpoint, whose files it keeps by hard links.

    Args:
        base: the name of the checkpoint, a directory beside the one that is saved, as process 0
            knows it; "" for none.

    Attributes:
        linked_bytes: of arrays, by this process, once all is written.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.linked_bytes = 0


class SaveOptions(NamedTuple):
    """Options of a save. Each format lists those that it takes in `save_options`.

    Attributes:
        prefix: the name of the tree in a directory of several; None: it has none.
        metadata: strings that are stored beside the tree.
        compression: of the chunks; None: they are raw.
        max_shard_bytes: the bytes of arrays in one file; None: the format decides.
        linking: what is needed to link files of an older checkpoint; None: all is written.
        items: more trees by prefix, which are committed with this one. Trees of other prefixes are
            then dropped. None: this tree alone is saved, and those of other prefixes stay.
    """

    prefix: str | None = None
    metadata: Mapping[str, str] = {}
    compression: str | None = None
    max_shard_bytes: int | None = None
    linking: Linking | None = None
    items: Mapping[str, Any] | None = None


class SavePlan(NamedTuple):
    """A planned save, which no longer depends on the caller's containers.

    Attributes:
        leaves: the leaves of the tree.
        write: writes the files, given the leaves: these or snapshots of them.
        sizes: of each leaf, the bytes that this process writes; None: all of each.
    """

    leaves: Sequence[Any]
    write: Callable[[Leaves], None]
    sizes: Sequence[int] | None = None


def require_strings(metadata: Any) -> None:
    """Raise TypeError for metadata that is no mapping; its format checks the content."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of strings, found {metadata!r:.80}")


def plan_save(
    format: WritableFormat,
    path: str | os.PathLike[str],
    tree: Any,
    options: SaveOptions,
    rendezvous: Rendezvous,
) -> SavePlan:
    """Plan the save of a tree. Raises as `cordwood.save` does, before anything is written."""
    require_strings(options.metadata)
    _check_options(format, os.fspath(path), options)
    return format.plan_save(path, tree, options, rendezvous)


def _check_options(format: WritableFormat, path: str, options: SaveOptions) -> None:
    """Raise ValueError for an option that the format does not take."""
    takes = format.save_options
    size = options.max_shard_bytes
    if size is not None:
        if "max_shard_bytes" not in takes:
            raise ValueError(f"{path}: max_shard_bytes= is for directories of safetensors files")
        if type(size) is not int or size < 1:
            raise ValueError(f"max_shard_bytes: expected an int of at least 1, found {size!r:.80}")
    if options.compression is not None and "compression" not in takes:
        raise ValueError(f'{path}: compression= is for layout="zarr"')
    if options.metadata and "metadata" not in takes:
        raise ValueError(f"{path}: the {format.name} format has no place for metadata")
    for name in ("prefix", "linking", "items"):
        if getattr(options, name) is not None and name not in takes:
            raise ValueError(f"{path}: the {format.name} format has no {name}")


class Snapshot(NamedTuple):
    """The structure, leaves and shards of a tree, without an element."""

    structure: Structure
    specs: tuple[LeafSpec, ...]
    shards: tuple[ShardGrid, ...]  # of each leaf: its cells, and which processes hold them
    leaves: tuple[Any, ...]  # the caller's
    local: tuple[int, ...]  # the arrays that every process holds for itself


def take_apart(tree: Any, *, process: int, process_count: int) -> Snapshot:
    """Return the structure of a tree, and the type and shards of its leaves.

    What jax has not spread over several processes (numpy arrays, Python values, arrays on this
    process's devices) counts as process 0's: every process has its own.

    Raises UnsupportedLeafError for a leaf that cannot be stored; names its key path.
    """
    flat = flatten(tree)
    specs = tuple(
        [
            describe_leaf(path, leaf, allow_remote=process_count > 1)
            for path, leaf in zip(flat.paths, flat.leaves, strict=True)
        ]
    )
    cache: dict[tuple[Any, tuple[int, ...]], ShardGrid] = {}
    shards = [
        _shards(spec, leaf, process, process_count, cache)
        for spec, leaf in zip(specs, flat.leaves, strict=True)
    ]
    single_holder = ((0,),)
    local = [
        i
        for i, (spec, shard) in enumerate(zip(specs, shards, strict=True))
        if spec.kind in ARRAY_KINDS and single_holder == tuple(set(shard.holders))
    ]
    return Snapshot(flat.structure, specs, tuple(shards), flat.leaves, tuple(local))


def _shards(
    spec: LeafSpec,
    leaf: Any,
    process: int,
    process_count: int,
    cache: dict[tuple[Any, tuple[int, ...]], ShardGrid],
) -> ShardGrid:
    sharding = leaf.sharding if is_jax_array(leaf) else None
    if sharding is not None and len(sharding.device_set) == 1 and sharding.is_fully_addressable:
        sharding = None
    key = (sharding, spec.shape)
    grid = cache.get(key)
    if grid is None:
        grid = cache[key] = _map(sharding, spec, leaf, process, process_count)
    return grid


def _map(sharding: Any, spec: LeafSpec, leaf: Any, process: int, process_count: int) -> ShardGrid:
    shape = spec.shape
    if sharding is None:
        return single_process_grid(shape)
    # Of a PRNG key array the shape is that of its data, which has axes more, all whole.
    grid = shard_grid(sharding, leaf.shape)
    holders = grid.holders
    processes = {holder for each in holders for holder in each}
    if process_count == 1 or processes == {process}:
        holders = ((0,),) * len(holders)
    elif len(processes) == 1:
        raise UnsupportedLeafError(
            f"{format_path(spec.key_path) or 'the tree itself'}: an array on devices of process "
            f"{processes.pop()} alone, which process {process} holds too; spread it over all "
            "processes, or keep it out of the tree"
        )
    more = ((0,),) * (len(shape) - len(leaf.shape))
    return ShardGrid(shape, (*grid.cuts, *more), holders)


def snapshot_fingerprints(
    snapshot: Snapshot, leaves: Leaves, *, first_leaf: int = 0, keep: bool
) -> list[bytes]:
    """Return the fingerprints of what a process holds, see `fingerprints`.

    Args:
        snapshot: of a tree.
        leaves: the leaves of several trees, of which this is one.
        first_leaf: the position of its first leaf.
        keep: False drops the leaves that each process holds for itself: another one writes them.
    """
    structure, specs, shards, _, local = snapshot
    elements = {}
    for leaf in local:
        elements[leaf] = np.asarray(leaves.view(first_leaf + leaf))
        if not keep:
            leaves.drop(first_leaf + leaf)
    return fingerprints(structure, specs, shards, elements)


def losses_in_a_state_dict(index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return a line for each kind of thing that Flax's msgpack cannot store, with key paths.

    That arrays load as numpy arrays, and named tuples as dicts of their fields, is not counted.
    """
    sequences: list[KeyPath] = []
    keyed: list[KeyPath] = []
    stack: list[KeyPath] = [()]
    for node in index.structure:
        path = stack.pop()
        if node.kind in ("list", "tuple"):
            sequences.append(path)
        if any(isinstance(key, DictKey) for key in node.keys) and node.kind == "dict":
            keyed.append(path)
        keys: Sequence[Key] = node.keys or range(node.size)
        stack.extend([(*path, key) for key in reversed(keys)])
    weak = [leaf.key_path for leaf in index.leaves if leaf.weak_type]
    losses = []
    if sequences:
        what = counted(len(sequences), "list or tuple", "lists and tuples")
        becomes = "becomes a dict" if len(sequences) == 1 else "become dicts"
        losses.append(f"{what} ({becomes} with the keys '0', '1' ...): {_listed(sequences)}")
    if keyed:
        what = counted(len(keyed), "dict")
        losses.append(
            f"{what} with keys that are not strings (they become strings): {_listed(keyed)}"
        )
    if weak:
        losses.append(f"{counted(len(weak), 'weak type')}: {_listed(weak)}")
    losses += _prng_keys(index)
    if metadata:
        losses.append(f"{counted(len(metadata), 'string')} beside the tree: {', '.join(metadata)}")
    return losses


def losses_in_tensors(index: Index) -> list[str]:
    """Return a line for each kind of thing that files of named arrays cannot store, with key paths.

    That names take the place of containers is not counted.
    """
    values = [leaf.key_path for leaf in index.leaves if leaf.kind not in ARRAY_KINDS]
    losses = []
    if values:
        what = counted(len(values), "value that is no array", "values that are no arrays")
        losses.append(f"{what}: {_listed(values)}")
    losses += _prng_keys(index)
    return losses


def refuse_opaque(index: Index, format_name: str) -> None:
    """Raise UnsupportedLeafError for values that only the format of the index understands."""
    opaque = [leaf for leaf in index.leaves if leaf.kind == "opaque"]
    if opaque:
        names = ", ".join([format_path(leaf.key_path) for leaf in opaque[:_SHOWN]])
        raise UnsupportedLeafError(
            f"{names}: a value that only {index.format} understands cannot be stored as "
            f"{format_name}; select the other leaves"
        )


def _prng_keys(index: Index) -> list[str]:
    """Return a line about the PRNG keys, if there are any."""
    keys = [leaf.key_path for leaf in index.leaves if leaf.kind == "prng_key"]
    if not keys:
        return []
    what = counted(len(keys), "PRNG key array")
    return [f"{what}, of which only the key data stays: {_listed(keys)}"]


def _listed(paths: Sequence[KeyPath]) -> str:
    return first_names([path_label(path) for path in paths], _SHOWN)
