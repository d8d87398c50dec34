"""The names that eFormer gives to leaves, in its order: its rules, corrected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cordwood.encoding.tensor_names import dotted_name
from cordwood.errors import MismatchError
from cordwood.formats.zarr.array_paths import ordinary_path
from cordwood.index import Index, jax_order
from cordwood.keypath import KeyPath, format_path
from cordwood.tree.flatten import entry_key


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


KeySteps = tuple[str, ...]


def leaf_order(index: Index) -> list[int]:
    """Return the positions of the leaves in the order in which eFormer lists them."""
    return jax_order(index.structure) if index.naming == "exact" else list(range(len(index.leaves)))


def leaf_steps(index: Index, prefix: str) -> list[KeySteps]:
    """Return for each leaf the keys under which eFormer's loader puts it.

    The keys are the parts of the directory's path below the prefix, divided at dots and slashes. A
    leaf whose directory is not named so keeps its own keys.
    """
    result: list[KeySteps] = [()] * len(index.leaves)
    used: set[KeySteps] = set()
    parents: set[KeySteps] = set()
    for i in leaf_order(index):
        path = index.leaves[i].key_path
        steps = _ordinary(path, prefix)
        if steps in used or steps in parents or any(steps[:n] in used for n in range(len(steps))):
            steps = tuple(format_path(path).split("/"))
        used.add(steps)
        parents.update(steps[:n] for n in range(len(steps)))
        result[i] = steps
    return result


def _ordinary(path: KeyPath, prefix: str) -> KeySteps:
    if not path:  # the tree is one leaf, in the directory of the prefix itself
        return tuple(prefix.replace("/", ".").split(".")) if prefix else ("", "")
    ordinary = ordinary_path(dotted_name(path))
    if ordinary is None:
        return tuple(format_path(path).split("/"))
    return tuple(ordinary.split("/"))


def nest_by_steps(steps: Sequence[KeySteps], values: Sequence[Any], *, name: str) -> dict[str, Any]:
    """Return nested dicts with the values at these keys.

    Raises MismatchError if two leaves have the same keys, or one is inside another.
    """
    tree: dict[str, Any] = {}
    for path, value in zip(steps, values, strict=True):
        node: Any = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})
            if type(node) is not dict:
                break
        if type(node) is not dict or path[-1] in node:
            raise MismatchError(
                f"{name}: {'.'.join(path)!r:.200} is the name of two leaves in a dict of strings; "
                "pass like=, or use cordwood.load, which keeps all keys as they are"
            )
        node[path[-1]] = value
    return tree
