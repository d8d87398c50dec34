"""Modules of flax.nnx: the tree of a module is that of `nnx.state(module)`.

As a pytree of jax, a module forgets that two of its attributes are one variable, and never ends if
it refers to itself. Its state has each variable once, and has nothing for None.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordwood.errors import UnsupportedLeafError


@dataclass(frozen=True)
class NnxBuilder:
    """A function that builds a state of flax.nnx from its children, or the module of that state."""

    build_state: Callable[[list[Any]], Any]
    module: Any = None  # None: the state itself is the result
    graphdef: Any = None

    def __call__(self, children: list[Any]) -> Any:
        state = self.build_state(children)
        return state if self.module is None else _nnx().merge(self.graphdef, state)

    def variables(self) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the variables of the module, each with its path in it."""
        graph = _nnx().iter_graph(self.module)
        return [(path, node) for path, node in graph if isinstance(node, _nnx().Variable)]


def has_nnx() -> bool:
    """Return True if flax.nnx is imported, without which there is no module."""
    return "flax.nnx" in sys.modules


def is_module(value: Any) -> bool:
    """Return True for a module of flax.nnx, or another object with a state, such as Optimizer."""
    kind = getattr(sys.modules.get("flax.nnx"), "Pytree", None)
    return kind is not None and isinstance(value, kind)


def is_state(value: Any) -> bool:
    """Return True for a state of flax.nnx."""
    kind = getattr(sys.modules.get("flax.nnx"), "State", None)
    return kind is not None and isinstance(value, kind)


def split_module(module: Any) -> tuple[Any, Any]:
    """Return what `nnx.merge` makes a module of: its graphdef, and its state.

    The state also has bare numbers and shapes in lists and dicts, which `nnx.state` leaves out.

    Raises UnsupportedLeafError if there are some in a module whose attributes share a variable.
    """
    split = _nnx().split
    if "graph" not in inspect.signature(split).parameters:
        return split(module)  # type: ignore[no-any-return]
    is_tree, bare = _survey(module)
    if not is_tree and bare:
        raise UnsupportedLeafError(
            f"{type(module).__name__}{bare} is neither an array nor in an nnx.Variable, and the "
            "module shares variables: nnx.state leaves it out there; wrap it in nnx.Variable"
        )
    return split(module, graph=not is_tree)  # type: ignore[no-any-return]


def _survey(module: Any) -> tuple[bool, str]:
    """Return True if a module is a tree, and the path of a leaf that only a tree has in its state.

    A tree shares nothing within itself, and is a pytree of jax. The path is "" if there is none.
    """
    import jax

    seen: set[int] = set()
    is_tree, bare = True, ""
    stack: list[tuple[str, Any, bool]] = [("", module, False)]
    while stack:
        path, value, is_in_container = stack.pop()
        inside = is_module(value)
        if inside or isinstance(value, _nnx().Variable):
            if id(value) in seen:
                is_tree = False
                continue
            seen.add(id(value))
            if not inside:
                continue
        root = iter([False])
        entries, treedef = jax.tree_util.tree_flatten_with_path(
            value, is_leaf=lambda _, root=root: next(root, True)
        )
        if not jax.tree_util.treedef_is_leaf(treedef) or value is None:
            stack += [
                (path + jax.tree_util.keystr(key), child, not inside) for key, child in entries
            ]
        elif inside:  # of a class with pytree=False
            is_tree = False
            stack += [(f"{path}.{name}", child, False) for name, child in vars(value).items()]
        elif is_in_container and not isinstance(value, jax.Array | np.ndarray):
            bare = path
    return is_tree, bare


def _nnx() -> Any:
    return sys.modules["flax.nnx"]
