"""Saves and timed restores by a group, into roots of its processes, one root, or a store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cordwood import CheckpointManager

LEAVES = 16


def tree_of(mib: int) -> dict[str, Any]:
    """Return a tree whose arrays are cut over all devices."""
    every = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))
    count = len(jax.devices())
    shape = count, (mib << 20) // (4 * LEAVES * count)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        rows = range(*index[0].indices(count)) if index else range(count)
        return np.stack([np.arange(shape[1], dtype=np.float32) + row for row in rows])

    return {str(n): jax.make_array_from_callback(shape, every, part) for n in range(LEAVES)}


def save(
    roots: Sequence[str], mib: int, *, options: Mapping[str, Any], environment: Mapping[str, str]
) -> list[str]:
    """Save one step; return the problems."""
    os.environ.update(environment)
    domains: dict[str, Any] = {"failure_domain": int} if options.get("replicas") else {}
    with CheckpointManager(roots[jax.process_index()], **options, **domains) as manager:
        manager.save(1, tree_of(mib))
        manager.wait()
    return [str(problem) for problem in manager.problems]


def restore(
    roots: Sequence[str], mib: int, *, options: Mapping[str, Any], environment: Mapping[str, str]
) -> float:
    """Return the seconds from the start of the manager to the restored state."""
    os.environ.update(environment)
    tree = tree_of(mib)
    sync_global_devices("begin")
    began = time.perf_counter()
    manager = CheckpointManager(roots[jax.process_index()], **options)
    restored = manager.restore(like=tree)
    assert restored is not None
    jax.block_until_ready(restored.tree)
    seconds = time.perf_counter() - began
    sync_global_devices("end")
    manager.close()
    for name, array in tree.items():
        for stored, shard in zip(
            restored.tree[name].addressable_shards, array.addressable_shards, strict=True
        ):
            assert np.array_equal(stored.data, shard.data)
    return seconds
