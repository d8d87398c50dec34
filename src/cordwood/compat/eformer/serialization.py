"""The calls of `eformer.serialization` for trees of arrays: switch by changing one import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.compat.eformer.tree_leaves import tree_deserialize_leaves, tree_serialize_leaves
from cordwood.sharding.partition_rules import match_partition_rules
from cordwood.tree.flatten import entry_key

__all__ = [
    "is_array_like",
    "join_key",
    "leaf_key_paths",
    "match_partition_rules",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
]


def is_array_like(x: Any) -> bool:
    """Return whether an object has a shape and a dtype: arrays of any kind, not Python numbers.

    >>> is_array_like(3.5)
    False
    """
    return hasattr(x, "shape") and hasattr(x, "dtype")


def join_key(prefix: str | None, k: str | None) -> str:
    """Return 'prefix.key', or the one that is not empty, or ''."""
    return ".".join(part for part in (prefix, k) if part)


def leaf_key_paths(
    pytree: Any, prefix: str | None = "", *, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Return a tree of the same structure whose leaves are their '.'-joined key paths.

    Args:
        pytree: any jax pytree.
        prefix: put in front of every name; it is the name of a single leaf.
        is_leaf: as in jax.tree_util.tree_flatten.

    Returns:
        The same containers with strings as leaves. The names are readable, but not
        injective ({'a.b': x} and {'a': {'b': x}} share one); `format_path` is.

    >>> leaf_key_paths({"a": [1, (2,)]})
    {'a': ['a.0', ('a.1.0',)]}
    """
    import jax

    paths, treedef = jax.tree_util.tree_flatten_with_path(pytree, is_leaf=is_leaf)
    names = [
        join_key(prefix, ".".join(str(entry_key(entry)) for entry in path)) for path, _ in paths
    ]
    return jax.tree_util.tree_unflatten(treedef, names)
