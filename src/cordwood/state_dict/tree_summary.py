"""Summary of a tree in numbers. It works for any value, even if attributes of leaves raise."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from cordwood.errors import LimitError
from cordwood.keypath import format_path
from cordwood.state_dict.state_dicts import state_and_problems
from cordwood.tree.flatten import flatten

_T = TypeVar("_T")


def summarize_tree(tree: Any) -> dict[str, Any]:
    """Return totals over the leaves of a tree; `msgpack.get_serialization_info` explains each."""
    leaves, structure = _flatten(tree)
    dtypes = {_call_or(_dtype_name, leaf, "") for leaf in leaves}
    return {
        "num_leaves": len(leaves),
        "tree_structure": structure,
        "total_elements": sum(_call_or(_elements, leaf, 1) for leaf in leaves),
        "memory_bytes": sum(_call_or(_memory_bytes, leaf, 0) for leaf in leaves),
        "dtypes": sorted(dtypes - {""}),
    }


def _flatten(tree: Any) -> tuple[list[Any], str]:
    """Return the leaves of any tree, and its structure as text."""
    state, problems = state_and_problems(tree)
    if any(isinstance(problem, LimitError) for problem in problems):
        return [], str(problems[-1])  # jax would not end for a tree that contains itself
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is not None:
        with suppress(Exception):  # keys that cannot be sorted, or errors of registered nodes
            leaves, structure = tree_util.tree_flatten(tree)
            return leaves, str(structure)
    with suppress(Exception):  # keys that no format can store
        flat = flatten(tree)
        return list(flat.leaves), ", ".join(map(format_path, flat.paths))
    return _leaves_of_state(state), "; ".join(map(str, problems))


def _leaves_of_state(state: Any) -> list[Any]:
    leaves: list[Any] = []
    stack = [state]
    while stack:
        value = stack.pop()
        if type(value) is dict:
            stack += reversed(value.values())
        elif value is not None:
            leaves.append(value)
    return leaves


def _call_or(function: Callable[[Any], _T], leaf: Any, default: _T) -> _T:
    try:
        return function(leaf)
    except Exception:  # noqa: BLE001  (attributes of leaves may raise anything)
        return default


def _elements(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    is_shape = isinstance(shape, tuple) and all(type(length) is int for length in shape)
    return math.prod(shape) if is_shape else 1


def _dtype_name(leaf: Any) -> str:
    return str(leaf.dtype)


def _memory_bytes(leaf: Any) -> int:
    if isinstance(leaf, (str, bytes, bytearray)):
        return len(leaf.encode("utf-8", "surrogatepass") if isinstance(leaf, str) else leaf)
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return np.array(leaf).nbytes
    nbytes = getattr(leaf, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0
