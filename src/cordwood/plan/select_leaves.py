"""A part of an index, under other names: what `select`, `rename` and `transpose` ask for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.errors import MismatchError
from cordwood.index import Index
from cordwood.keypath import DictKey, Key, KeyPath, format_path
from cordwood.plan.path_patterns import Select, match_patterns, path_name
from cordwood.plan.rename_paths import rename_key_paths
from cordwood.plan.transpose_leaves import Axes, Transpose, transpose_index
from cordwood.tree.structure import Node, Structure


class SelectedLeaves(NamedTuple):
    """Some leaves of an index, as an index of their own."""

    stored: Index
    numbers: tuple[int, ...]  # of its leaves, in the index that they are from
    left_out: frozenset[KeyPath] = frozenset()  # what was not selected, under its new names
    axes: Mapping[int, Axes] = {}  # of transposed leaves of `stored`, by position


class _Item(NamedTuple):
    """What a structure ends in: a leaf, or a container with nothing in it."""

    path: KeyPath
    above: tuple[Node, ...]  # the containers that it is in, the outermost first
    node: Node
    number: int  # of the leaf; -1


def select_leaves(
    index: Index,
    *,
    select: Select | None,
    rename: Mapping[str, str] | None,
    transpose: Transpose | None = None,
    where: str,
) -> SelectedLeaves:
    """Return the leaves that are wanted, under the names and with the shapes they are wanted by.

    A list or tuple that loses an element becomes a dict of those left by position, whose type
    name says what it was; its leaves keep their key paths.

    Args:
        index: what is stored.
        select: patterns over its key paths (`plan.patterns`); None: everything.
        rename: other names (`plan.renaming`); None: those it has.
        transpose: patterns over the other names (`plan.transposing`); None: as they are stored.
        where: what is called so in errors.

    Raises:
        MismatchError: a pattern or a rule matches nothing, or two leaves get one name, or
            something cannot be transposed so.
    """
    part = SelectedLeaves(index, tuple(range(len(index.leaves))))
    if select is not None or rename:
        part = _renamed_part(index, select=select, rename=rename, where=where)
    if transpose is None:
        return part
    stored, axes = transpose_index(part.stored, transpose, where=where)
    return part._replace(stored=stored, axes=axes)


def _renamed_part(
    index: Index, *, select: Select | None, rename: Mapping[str, str] | None, where: str
) -> SelectedLeaves:
    items = _items(index)
    paths = [item.path for item in items]
    named = paths
    if rename:
        named = rename_key_paths(paths, rename, naming=index.naming, where=where)
        _check_names(named, paths)
    taken = [True] * len(items)
    if select is not None:
        names = [path_name(path, index.naming) for path in paths]
        taken = match_patterns(names, select, naming=index.naming, where=where)
    kept = [i for i, take in enumerate(taken) if take]
    structure, order = _structure([items[i] for i in kept], [named[i] for i in kept])
    leaves = []
    numbers = []
    for n in order:
        item = items[kept[n]]
        numbers.append(item.number)
        leaves.append(index.leaves[item.number]._replace(key_path=named[kept[n]]))
    left_out = frozenset(named[i] for i, take in enumerate(taken) if not take)
    return SelectedLeaves(
        index._replace(structure=structure, leaves=tuple(leaves)), tuple(numbers), left_out
    )


def _items(index: Index) -> list[_Item]:
    items: list[_Item] = []
    stack: list[tuple[KeyPath, tuple[Node, ...]]] = [((), ())]
    count = 0
    for node in index.structure:
        path, above = stack.pop()
        if node.kind == "leaf":
            items.append(_Item(index.leaves[count].key_path, above, node, count))
            count += 1
        elif not node.size:
            items.append(_Item(path, above, node, -1))
        else:
            inside = (*above, node)
            keys: Sequence[Key] = node.keys or range(node.size)
            stack.extend([((*path, key), inside) for key in reversed(keys)])
    return items


def _check_names(named: Sequence[KeyPath], paths: Sequence[KeyPath]) -> None:
    first: dict[KeyPath, KeyPath] = {}
    problems = []
    for new, old in zip(named, paths, strict=True):
        other = first.setdefault(new, old)
        if other is not old:
            problems.append(f"  {format_path(other)} and {format_path(old)}: {_shown(new)}")
    for new, old in first.items():
        for stop in range(len(new)):
            other = first.get(new[:stop], old)
            if other is not old:
                problems.append(
                    f"  {format_path(other)}: {_shown(new[:stop])}, a leaf and above it"
                )
    if problems:
        raise MismatchError("rename gives one name twice:\n" + "\n".join(problems[:20]))


def _shown(path: KeyPath) -> str:
    return format_path(path) or "the root"


class _Place:
    """A container on the way to the items of a new structure."""

    __slots__ = ("children", "sources")

    def __init__(self) -> None:
        self.children: dict[Key, _Place | int] = {}
        self.sources: dict[int, Node] = {}  # the containers that it was, by identity


def _structure(
    items: Sequence[_Item], named: Sequence[KeyPath]
) -> tuple[Structure, tuple[int, ...]]:
    """A structure that ends in the items under their names, and the numbers of those that are
    leaves, in its order."""
    if not items:
        return (Node("dict"),), ()
    if not named[0]:
        return (items[0].node,), (0,) if items[0].number >= 0 else ()
    root = _Place()
    for n, (item, path) in enumerate(zip(items, named, strict=True)):
        place = root
        old = item.path if len(item.path) == len(item.above) else path
        front = _common(old, path)
        back = _common(old[::-1], path[::-1])
        for depth, key in enumerate(path):
            if depth <= front and depth < len(item.above):
                source = item.above[depth]
                place.sources.setdefault(id(source), source)
            elif len(path) - depth <= back and len(path) - depth <= len(item.above):
                source = item.above[depth - len(path)]
                place.sources.setdefault(id(source), source)
            if depth == len(path) - 1:
                place.children[key] = n
            else:
                inner = place.children.setdefault(key, _Place())
                assert isinstance(inner, _Place)
                place = inner
    nodes: list[Node] = []
    order: list[int] = []
    stack: list[_Place | int] = [root]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            nodes.append(items[top].node)
            if items[top].number >= 0:
                order.append(top)
            continue
        node, keys = _container(top)
        nodes.append(node)
        stack.extend(top.children[key] for key in reversed(keys))
    return tuple(nodes), tuple(order)


def _common(one: KeyPath, other: KeyPath) -> int:
    """How many keys two paths begin with together."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b or type(a) is not type(b):
            break
        count += 1
    return count


def _container(place: _Place) -> tuple[Node, list[Key]]:
    """What a container becomes, and its keys in order."""
    keys = list(place.children)
    sources = list(place.sources.values())
    kinds = {source.kind for source in sources}
    if all(type(key) is int for key in keys):
        keys.sort(key=_position)
        whole = all(source.size == len(keys) for source in sources)
        if whole and keys == list(range(len(keys))) and kinds in (set(), {"list"}, {"tuple"}):
            return Node("tuple" if "tuple" in kinds else "list", len(keys)), keys
    own: tuple[Any, ...] = tuple(DictKey(key) if type(key) is int else key for key in keys)
    (source,) = sources if len(sources) == 1 else [Node("dict")]
    if source.keys == own:
        return source, keys
    was = source.kind if source.kind in ("list", "tuple") else ""
    return Node("dict", len(own), own, was), keys


def _position(key: Key) -> int:
    assert isinstance(key, int)
    return key
