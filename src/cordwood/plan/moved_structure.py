"""The structure of leaves that were selected or moved: a subtree moves as a whole. Pure.

A container that was moved with everything in it stays a list, tuple or node with fields. The kind
of every other container whose path or contents have changed is a guess, which only a tree without
a `like` needs: `like` says what each container is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from cordwood.index import Naming, Node, Structure
from cordwood.keypath import DictKey, Key, KeyPath


class StoredContainer:
    """A container of a stored tree, and the number of leaves and empty containers in it."""

    __slots__ = ("item_count", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.item_count = 0


class TreeEnd(NamedTuple):
    """A leaf or an empty container: one end of a structure."""

    path: KeyPath
    above: tuple[StoredContainer, ...]  # the containers around it, the outermost first
    node: Node
    number: int  # of the leaf; -1 for an empty container

    def holds_nothing(self, naming: Naming) -> bool:
        """Return True for an empty container; None counts where a format stores them as None."""
        return self.number < 0 and (self.node.kind != "none" or naming == "keys")


class MovedStructure(NamedTuple):
    """A structure that holds some items under new paths."""

    structure: Structure
    order: tuple[int, ...]  # the positions of its leaves among the items, in its order
    moved: frozenset[KeyPath]  # what is not in the place, and with the contents, that it had


def items_of(structure: Structure, leaf_paths: Sequence[KeyPath]) -> list[TreeEnd]:
    """Return the leaves and empty containers of a tree, in its order."""
    items: list[TreeEnd] = []
    stack: list[tuple[KeyPath, tuple[StoredContainer, ...]]] = [((), ())]
    count = 0
    for node in structure:
        path, above = stack.pop()
        if node.kind != "leaf" and node.size:
            inside = (*above, StoredContainer(node))
            keys: Sequence[Key] = node.keys or range(node.size)
            if _holds_positions(node):
                keys = [getattr(key, "value", key) for key in keys]
            stack.extend([((*path, key), inside) for key in reversed(keys)])
            continue
        for container in above:
            container.item_count += 1
        if node.kind == "leaf":
            items.append(TreeEnd(leaf_paths[count], above, node, count))
            count += 1
        else:
            items.append(TreeEnd(path, above, node, -1))
    return items


def same_path(one: KeyPath, other: KeyPath) -> bool:
    """Return True if two key paths have equal keys of equal types."""
    return one == other and list(map(type, one)) == list(map(type, other))


def moved_structure(items: Sequence[TreeEnd], paths: Sequence[KeyPath]) -> MovedStructure:
    """Return the structure that holds the items under their new paths.

    Args:
        items: leaves and empty containers of a stored tree.
        paths: their new paths; none is a prefix of another.
    """
    if not items:
        return MovedStructure((Node("dict"),), (), frozenset({()}))
    moved = {path for item, path in zip(items, paths, strict=True) if not _in_place(item, path)}
    if not paths[0]:
        order = (0,) if items[0].number >= 0 else ()
        return MovedStructure((items[0].node,), order, frozenset(moved))
    root = _Container()
    for position, (item, path) in enumerate(zip(items, paths, strict=True)):
        _place(root, position, item, path)
    nodes: list[Node] = []
    order_of_leaves: list[int] = []
    stack: list[tuple[KeyPath, _Child]] = [((), root)]
    while stack:
        path, child = stack.pop()
        if isinstance(child, int):
            nodes.append(items[child].node)
            if items[child].number >= 0:
                order_of_leaves.append(child)
            continue
        node, keys = _node_of(child)
        nodes.append(node)
        if not (child.is_in_place and child.is_whole):
            moved.add(path)
        stack.extend([((*path, key), child.children[key]) for key in reversed(keys)])
    return MovedStructure(tuple(nodes), tuple(order_of_leaves), frozenset(moved))


class _Container:
    """A container of a new structure, under construction."""

    __slots__ = ("children", "is_in_place", "item_count", "sources")

    def __init__(self) -> None:
        self.children: dict[Key, _Child] = {}
        self.sources: dict[int, StoredContainer] = {}  # of its items, by identity
        self.item_count = 0
        self.is_in_place = True  # all of its items have the paths that they had

    @property
    def is_whole(self) -> bool:
        """True if all of its items come from one stored container, and nothing else does."""
        counts = [source.item_count for source in self.sources.values()]
        return counts == [self.item_count]


_Child: TypeAlias = _Container | int


def _place(root: _Container, position: int, item: TreeEnd, path: KeyPath) -> None:
    """Add an item at its new path, and note which stored container each one around it was."""
    old = _old_path(item, path)
    in_place = same_path(old, path)
    front = _common(old, path)
    back = _common(old[::-1], path[::-1])
    container = root
    for depth, key in enumerate(path):
        below = len(path) - depth  # the number of keys from this container to the item
        source = None
        if below <= min(back, len(item.above)):
            source = item.above[-below]
        elif depth <= front and depth < len(item.above):
            source = item.above[depth]
        if source is not None:
            container.sources.setdefault(id(source), source)
        container.item_count += 1
        container.is_in_place &= in_place
        if depth == len(path) - 1:
            container.children[key] = position
        else:
            inner = container.children.setdefault(key, _Container())
            assert isinstance(inner, _Container)
            container = inner


def _in_place(item: TreeEnd, path: KeyPath) -> bool:
    return same_path(_old_path(item, path), path)


def _old_path(item: TreeEnd, path: KeyPath) -> KeyPath:
    return item.path if len(item.path) == len(item.above) else path


def _common(one: KeyPath, other: KeyPath) -> int:
    """Return the number of leading keys that two paths share."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b or type(a) is not type(b):
            break
        count += 1
    return count


def _node_of(container: _Container) -> tuple[Node, list[Key]]:
    """Return the node that a new container becomes, and its keys in order."""
    keys = list(container.children)
    sources = [source.node for source in container.sources.values()]
    kinds = {source.kind for source in sources}
    if all(type(key) is int for key in keys):
        keys.sort(key=lambda key: cast("int", key))
        whole = all(source.size == len(keys) for source in sources)
        if whole and keys == list(range(len(keys))) and kinds in (set(), {"list"}, {"tuple"}):
            return Node("tuple" if "tuple" in kinds else "list", len(keys)), keys
    node_keys: tuple[Any, ...] = tuple(DictKey(key) if type(key) is int else key for key in keys)
    (source,) = sources if len(sources) == 1 else [Node("dict")]
    has_positions = int in map(type, keys)
    if source.keys == node_keys and has_positions >= _holds_positions(source):
        return source, keys
    was = ""
    if has_positions and source.kind in ("list", "tuple"):
        was = source.kind
    elif has_positions and DictKey not in map(type, keys):
        was = "list"
    return Node("dict", len(node_keys), node_keys, was), keys


def _holds_positions(node: Node) -> bool:
    """Return True for a dict of some elements of a list or tuple, by their positions."""
    return node.kind == "dict" and node.type_name in ("list", "tuple")
