"""The calls of `eformer.serialization` for trees of arrays: switch by changing one import."""

from __future__ import annotations

from cordwood.compat.eformer.leaf_key_paths import is_array_like, join_key, leaf_key_paths
from cordwood.compat.eformer.tree_deserialize import tree_deserialize_leaves
from cordwood.compat.eformer.tree_serialize import tree_serialize_leaves
from cordwood.sharding.partition_rules import match_partition_rules

__all__ = [
    "is_array_like",
    "join_key",
    "leaf_key_paths",
    "match_partition_rules",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
]
