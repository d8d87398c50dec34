"""Short descriptions of trees."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["returned"]

_FEW = 4


def returned(tree: Any, saved: Any) -> str:
    """Describe the tree that a library returned, and say if its values differ from the saved ones.

    >>> returned({"a": np.ones(3, np.float32), "n": 1}, {"a": np.zeros(3, np.float32), "n": 1})
    "returns {'a': float32[3] 1 1 1, 'n': 1}, with other values than were saved"
    """
    text = f"returns {_tree(tree)}"
    return text if _equal(tree, saved) else f"{text}, with other values than were saved"


def _tree(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_tree(value[key])}" for key in value) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        inner = ", ".join(f"{name}={_tree(each)}" for name, each in fields)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_tree, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        values = "".join(f" {each:g}" for each in _few(value))
        return f"{value.dtype}[{','.join(map(str, value.shape))}]{values}"
    if callable(value):
        return f"the function {value.__name__}"
    return repr(value)


def _few(array: Any) -> list[Any]:
    """Return the elements of an array of a few numbers, else an empty list."""
    if array.size > _FEW or array.dtype.kind not in "iuf":
        return []
    return list(np.asarray(array).ravel())


def _equal(tree: Any, saved: Any) -> bool:
    """Compare the values of trees with the same structure; other differences are ignored."""
    if isinstance(saved, dict) and isinstance(tree, dict):
        return all(_equal(tree[key], saved[key]) for key in saved if key in tree)
    if isinstance(saved, (list, tuple)) and isinstance(tree, (list, tuple)):
        return all(map(_equal, tree, saved))
    if getattr(tree, "shape", ()) != getattr(saved, "shape", ()):
        return True
    return bool(np.all(np.asarray(tree) == np.asarray(saved)))
