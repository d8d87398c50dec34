"""A tree prepared for a save of many files: the type and the shards of each leaf.

The elements of leaves are not part of it: they are the caller's, or, for a save in the
background, what `cordwood.devices.host_snapshot.snapshot_leaves` made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.devices.host_snapshot import ArraySnapshot, LocalShardReader
from cordwood.errors import UnsupportedLeafError
from cordwood.index import ARRAY_KINDS, Box, LeafSpec
from cordwood.io.lazy_array import LazyArray
from cordwood.keypath import format_path
from cordwood.sharding.boxes import ShardGrid, shard_grid, single_process_grid, slices
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf, is_jax_array, whole_array, without_padding
from cordwood.tree.structure import Structure

Fetch: TypeAlias = Callable[[int], Any]


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


class LeafParts:
    """The leaves of a save: each is fetched for its first part, and released after its last.

    Args:
        fetch: returns a leaf, the caller's or a held one.
        parts: for each part that will be asked for, its leaf.
    """

    def __init__(self, fetch: Fetch, parts: Iterable[int]) -> None:
        self._fetch = fetch
        self._left: dict[int, int] = {}
        for leaf in parts:
            self._left[leaf] = self._left.get(leaf, 0) + 1
        self._held: dict[int, Any] = {}
        self._local = LocalShardReader()

    def part(self, leaf: int, box: Box | None) -> Any:
        """Return the elements of a box of a leaf, or of all of it.

        They are a view if possible; of a LazyArray, a LazyArray.
        """
        if box is None:  # its only part
            return _whole(self._fetch(leaf))
        if leaf not in self._held:
            self._held[leaf] = _elements(self._fetch(leaf))
        value = self._held[leaf]
        self._left[leaf] -= 1
        if not self._left[leaf]:
            del self._held[leaf]
        return _within(value, box, self._local)


class PartViews:
    """Parts of leaves that stay where they are, in any order, any number of times.

    Args:
        look: returns a leaf, the caller's or a held one.
    """

    def __init__(self, look: Fetch) -> None:
        self._look = look
        self._local = LocalShardReader()

    def part(self, leaf: int, box: Box | None) -> Any:
        """Return a part as `LeafParts.part` does, any number of times."""
        value = self._look(leaf)
        return _whole(value) if box is None else _within(_elements(value), box, self._local)


def _whole(value: Any) -> Any:
    return value if isinstance(value, LazyArray) else whole_array(value)


def _within(value: Any, box: Box, local: LocalShardReader) -> Any:
    if isinstance(value, ArraySnapshot):
        return value.part(box)
    if isinstance(value, LazyArray):
        return value.within(box)
    if is_jax_array(value):
        return local.part(value, box)
    return without_padding(value[(*slices(box), ...)])


def _elements(leaf: Any) -> Any:
    if isinstance(leaf, str):
        leaf = leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return np.frombuffer(leaf, np.uint8)
    if isinstance(leaf, ArraySnapshot | LazyArray):
        return leaf
    if not is_jax_array(leaf):
        return np.asarray(leaf)
    if isinstance(leaf.dtype, np.dtype):
        return leaf
    import jax

    return jax.random.key_data(leaf)
