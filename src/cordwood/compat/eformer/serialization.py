"""What `eformer.serialization` has for trees of arrays: switch by changing one import."""

from __future__ import annotations

from cordwood.api.deserialize import tree_deserialize_leaves
from cordwood.api.serialize import tree_serialize_leaves
from cordwood.sharding.rules import match_partition_rules
from cordwood.tree.leaf_key_paths import is_array_like, join_key, leaf_key_paths

__all__ = [
    "is_array_like",
    "join_key",
    "leaf_key_paths",
    "match_partition_rules",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
]
