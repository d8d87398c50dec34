"""The order in which jax flattens a tree, computed from its structure."""

from __future__ import annotations

from typing import Any

from cordwood.keypath import DictKey
from cordwood.tree.structure import Node, Structure


def jax_order(structure: Structure) -> list[int]:
    """Return the positions of the leaves in the structure, in the order of jax.tree.leaves.

    jax sorts the keys of dicts; a structure has them in the order of the dict. If keys cannot be
    compared, jax refuses the tree; here they keep their order.
    """
    leaves, ends = _extents(structure)
    order: list[int] = []
    stack = [0]
    while stack:
        at = stack.pop()
        node = structure[at]
        if node.kind == "leaf":
            order.append(leaves[at])
            continue
        children = []
        child = at + 1
        for _ in range(node.size):
            children.append(child)
            child = ends[child]
        stack += [children[i] for i in reversed(_child_order(node))]
    return order


def _extents(structure: Structure) -> tuple[list[int], list[int]]:
    """Return, for each node, the number of leaves before it and the end of its descendants."""
    count = len(structure)
    leaves = [0] * count
    seen = 0
    for i, node in enumerate(structure):
        leaves[i] = seen
        seen += node.kind == "leaf"
    ends = [0] * count
    stack: list[int] = []  # nodes after the current one, the next one uppermost
    for i in range(count - 1, -1, -1):
        size = structure[i].size
        if size:
            last = stack[-size]
            del stack[-size:]
            ends[i] = ends[last]
        else:
            ends[i] = i + 1
        stack.append(i)
    return leaves, ends


def _child_order(node: Node) -> list[int]:
    positions = list(range(node.size))
    if node.kind != "dict" or node.type_name == "OrderedDict":
        return positions
    keys: list[Any] = [key.value if isinstance(key, DictKey) else key for key in node.keys]
    try:
        return sorted(positions, key=keys.__getitem__)
    except TypeError:
        return positions
