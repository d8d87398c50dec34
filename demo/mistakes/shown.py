"""Trees in a few words."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["returned"]

_FEW = 4


def returned(found: Any, saved: Any) -> str:
    """What a library gave back, and whether that is what was saved.

    >>> returned({"a": np.ones(3, np.float32), "n": 1}, {"a": np.zeros(3, np.float32), "n": 1})
    "returns {'a': float32[3] 1 1 1, 'n': 1}, with other values than were saved"
    """
    text = f"returns {_tree(found)}"
    return text if _equal(found, saved) else f"{text}, with other values than were saved"


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
    """The elements of an array of a few numbers."""
    if array.size > _FEW or array.dtype.kind not in "iuf":
        return []
    return list(np.asarray(array).ravel())


def _equal(found: Any, saved: Any) -> bool:
    """Of trees alike in structure; where they are not, that is seen."""
    if isinstance(saved, dict) and isinstance(found, dict):
        return all(_equal(found[key], saved[key]) for key in saved if key in found)
    if isinstance(saved, (list, tuple)) and isinstance(found, (list, tuple)):
        return all(map(_equal, found, saved))
    if getattr(found, "shape", ()) != getattr(saved, "shape", ()):
        return True
    return bool(np.all(np.asarray(found) == np.asarray(saved)))
