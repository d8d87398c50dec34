"""An outline of a tree: its containers with the sums of their leaves, cut to some rows. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from cordwood.keypath import Key, KeyPath


class OutlineRow(NamedTuple):
    """One row: a leaf, or a container with some of its children.

    Attributes:
        keys: the keys from the row above to this one; several if each container between them has
            one child only.
        leaf: the position of the leaf; None for a container.
        leaf_count: the number of leaves in it.
        size_bytes: the sum of their sizes.
        children: the rows that are shown below it.
        hidden: the number of children that are not shown.
    """

    keys: KeyPath
    leaf: int | None
    leaf_count: int
    size_bytes: int
    children: Sequence[OutlineRow]
    hidden: int


class _Node:
    """A node of the whole tree."""

    __slots__ = ("children", "depth", "keys", "leaf", "leaf_count", "shown", "size_bytes")

    def __init__(self) -> None:
        self.children: dict[Key, _Node] = {}
        self.leaf: int | None = None
        self.leaf_count = 0
        self.size_bytes = 0
        self.keys: KeyPath = ()
        self.depth = 0
        self.shown: list[_Node] = []


def outline(
    key_paths: Sequence[KeyPath],
    sizes: Sequence[int],
    *,
    max_rows: int,
    max_children: int,
    max_depth: int,
) -> OutlineRow:
    """Return the outline of a tree; its root has no keys.

    Rows near the root come first: a container is opened only if all containers above its level
    are.

    Args:
        key_paths: of the leaves, in their order.
        sizes: of the leaves, in bytes.
        max_rows: the largest number of rows in all.
        max_children: the largest number of rows of one container.
        max_depth: the largest number of containers inside one another that are opened.
    """
    root = _Node()
    for leaf, (path, size_bytes) in enumerate(zip(key_paths, sizes, strict=True)):
        node = root
        node.leaf_count += 1
        node.size_bytes += size_bytes
        for key in path:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node()
            node = child
            node.leaf_count += 1
            node.size_bytes += size_bytes
        node.leaf = leaf
    queue = deque([root])
    order = []
    while queue and max_rows > 0:
        node = queue.popleft()
        order.append(node)
        for key, first in islice(node.children.items(), min(max_children, max_rows)):
            child, keys = first, [key]
            while len(child.children) == 1 and child.leaf is None:
                ((key, child),) = child.children.items()
                keys.append(key)
            child.keys, child.depth = tuple(keys), node.depth + 1
            node.shown.append(child)
            if child.children and child.depth < max_depth:
                queue.append(child)
        max_rows -= len(node.shown)
    rows: dict[int, OutlineRow] = {}
    for node in reversed(order):  # the children of a node come after it
        rows[id(node)] = _row(node, [rows.get(id(each)) or _row(each, ()) for each in node.shown])
    return rows[id(root)] if rows else _row(root, ())


def _row(node: _Node, children: Sequence[OutlineRow]) -> OutlineRow:
    hidden = len(node.children) - len(children)
    return OutlineRow(
        node.keys, node.leaf, node.leaf_count, node.size_bytes, tuple(children), hidden
    )
