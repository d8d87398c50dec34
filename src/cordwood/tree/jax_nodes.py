"""Pytree nodes that are registered with jax, flattened one level at a time.

jax is never imported for this: types can be registered only where it is already imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from cordwood.keypath import DictKey, Key, is_dict_key


class RegisteredNode(NamedTuple):
    """One node: its keys, its children, and the function that rebuilds it from other children."""

    keys: list[Key]
    children: list[Any]
    unflatten: Callable[[list[Any]], Any]


def open_registered(value: Any) -> RegisteredNode | None:
    """Flatten one level of a node; return None if jax is not loaded or `value` is a leaf for it."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None:
        return None
    root = iter([False])  # all below is a leaf: even the node itself, if it is its own child
    entries, treedef = tree_util.tree_flatten_with_path(value, is_leaf=lambda _: next(root, True))
    if len(entries) == 1 and not entries[0][0]:
        return None
    return RegisteredNode(
        keys=[_key(path[0]) for path, _ in entries],
        children=[child for _, child in entries],
        unflatten=treedef.unflatten,
    )


def _key(entry: Any) -> Key:
    """Return the key for a jax key path entry: 0 for SequenceKey(0), 'x' for GetAttrKey('x')."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            key = getattr(entry, attribute)
            if isinstance(key, str):
                return str(key)
            if type(key) is int:
                return DictKey(key) if type(entry).__name__ == "DictKey" else key
            return DictKey(key) if is_dict_key(key) else str(key)
    return str(entry)
