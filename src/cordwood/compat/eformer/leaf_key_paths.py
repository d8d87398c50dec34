"""leaf_key_paths: a tree of its own leaves' dotted names; and its small relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_array_like(x: Any) -> bool:
    """Whether something has a shape and a dtype: arrays of any kind, not Python's numbers.

    >>> is_array_like(3.5)
    False
    """
    return hasattr(x, "shape") and hasattr(x, "dtype")


def join_key(prefix: str | None, k: str | None) -> str:
    """'prefix.key', where both are there; else the one that is, or ''."""
    return ".".join(part for part in (prefix, k) if part)


def leaf_key_paths(
    pytree: Any, prefix: str | None = "", *, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """A tree of the same structure whose leaves are their own '.'-joined key paths.

    Args:
        pytree: any jax pytree.
        prefix: put in front of every name; a single leaf is named by it alone.
        is_leaf: as in jax.tree_util.tree_flatten.

    Returns:
        The same containers, with strings for leaves. The names are readable and not
        injective ({'a.b': x} and {'a': {'b': x}} share one); `format_path` is.

    >>> leaf_key_paths({"a": [1, (2,)]})
    {'a': ['a.0', ('a.1.0',)]}
    """
    import jax

    paths, treedef = jax.tree_util.tree_flatten_with_path(pytree, is_leaf=is_leaf)
    names = [join_key(prefix, ".".join(str(_key(entry)) for entry in path)) for path, _ in paths]
    return jax.tree_util.tree_unflatten(treedef, names)


def _key(entry: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry
