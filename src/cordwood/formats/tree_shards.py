"""A tree prepared for a save of many files: the type and the shards of each leaf.

The elements of leaves are not part of it: they are the caller's, or, for a save in the
background, what `cordwood.devices.host_snapshot.snapshot_leaves` made of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import UnsupportedLeafError
from cordwood.index import ARRAY_KINDS, LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.keypath import format_path
from cordwood.processes.collective_save import fingerprints
from cordwood.sharding.boxes import ShardGrid, shard_grid, single_process_grid
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf, is_jax_array
from cordwood.tree.structure import Structure


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
