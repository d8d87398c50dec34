"""Where the shards of a leaf begin."""

from __future__ import annotations

from typing import Any

from cordwood.index import LeafSpec
from cordwood.sharding.boxes import Cuts
from cordwood.sharding.shards import shard_map
from cordwood.tree.leaves import is_jax_array

__all__ = ["leaf_cuts"]


def leaf_cuts(spec: LeafSpec, leaf: Any) -> Cuts:
    """Where the parts of an array leaf begin along each axis; of a PRNG key array it is one."""
    if spec.kind == "jax" and is_jax_array(leaf) and len(leaf.sharding.device_set) > 1:
        return shard_map(leaf.sharding, spec.shape).cuts
    return ((0,),) * len(spec.shape)
