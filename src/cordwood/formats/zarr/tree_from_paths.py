"""The tree that the paths of another writer's arrays make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.formats.zarr.array_paths import within_prefix
from cordwood.keypath import KeyPath
from cordwood.tree.structure import LEAF, Node, Structure


class Nested(NamedTuple):
    """Dicts with leaves."""

    structure: Structure
    order: tuple[int, ...]  # the array that each leaf is
    key_paths: tuple[KeyPath, ...]  # of the leaves


def nested_dicts(paths: Sequence[str], prefix: str) -> Nested:
    """Nested dicts by the steps of the paths; or one flat dict, where a leaf lies in another."""
    if len(paths) == 1 and paths[0] == (prefix.replace(".", "/") or "."):
        return Nested((LEAF,), (0,), ((),))  # the tree is one leaf
    steps = [tuple(within_prefix(path, prefix)) for path in paths]
    above = {path[:i] for path in steps for i in range(len(path))}
    if not above.isdisjoint(steps) or len(set(steps)) < len(steps):
        steps = [(path,) for path in paths]
    tree: dict[str, object] = {}
    for i, path in enumerate(steps):
        node = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})  # type: ignore[assignment]
        node[path[-1]] = i
    nodes: list[Node] = []
    order: list[int] = []
    stack: list[object] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            nodes.append(Node("dict", len(value), tuple(value)))
            stack += reversed(value.values())
        else:
            assert isinstance(value, int)
            nodes.append(LEAF)
            order.append(value)
    return Nested(tuple(nodes), tuple(order), tuple([steps[i] for i in order]))
