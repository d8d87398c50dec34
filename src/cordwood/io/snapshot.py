"""Snapshots of the leaves of a tree, which later changes of the tree do not affect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cordwood.devices.array_shards import DistinctShardsOf, distinct_shards, local_shards
from cordwood.tree.leaves import is_jax_array


def snapshot_leaves(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with their present values, which later changes do not affect.

    jax.Arrays on CPU become LocalShards, numpy arrays are copied; all other leaves are immutable
    and stay. The caller's arrays are not modified. jax.Arrays on accelerators become ArrayShards,
    which are not copied yet. One case is not protected: memory that a jax.Array shares with a
    numpy array (`jax.device_put` of one, on CPU) can still change, and this cannot be detected.

    Waits only for arrays on CPU that are still being computed.
    """
    held: list[Any] = []
    cache: DistinctShardsOf = {}
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf = np.array(leaf)
        elif is_jax_array(leaf):
            leaf = distinct_shards(leaf, cache)
            if leaf.on_cpu:
                leaf = local_shards(leaf, views=True)
        held.append(leaf)
    return held
