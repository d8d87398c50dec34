"""The tree of dicts that the paths of arrays make up, where no index has another tree."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.index import LEAF, Node, Structure
from cordwood.keypath import KeyPath


def within_prefix(path: str, prefix: str) -> list[str]:
    """Return the steps of an array's path below its prefix; all of them if it is not below.

    >>> within_prefix("model/a/w", "model")
    ['a', 'w']
    """
    steps = path.split("/")
    above = prefix.replace(".", "/").split("/") if prefix else []
    if above and len(steps) > len(above) and steps[: len(above)] == above:
        return steps[len(above) :]
    return steps


def nested_dicts(
    paths: Sequence[str], prefix: str
) -> tuple[Structure, Sequence[int], Sequence[KeyPath]]:
    """Return nested dicts by the steps of the paths; or one flat dict, if a leaf is within another.

    Returns:
        The structure; the array that each leaf is; the key paths of the leaves.
    """
    if len(paths) == 1 and paths[0] == (prefix.replace(".", "/") or "."):
        return (LEAF,), [0], [()]  # the tree is one leaf
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
    return tuple(nodes), order, [steps[i] for i in order]
