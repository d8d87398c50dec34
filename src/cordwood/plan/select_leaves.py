"""Selection of leaves with new names and axes: `select`, `rename` and `transpose`. Pure.

`select` and `rename` are patterns over key paths (`plan.path_patterns`). `transpose`:

["**/kernel"]                    matrices load with their two axes swapped
{"conv/kernel": (2, 3, 1, 0)}    axes as numpy.transpose takes them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from cordwood.errors import MismatchError
from cordwood.index import Box, Index, Leaf, Naming, Node, Structure
from cordwood.keypath import DictKey, Key, KeyPath, format_path, path_label
from cordwood.message_text import first_lines
from cordwood.plan.path_patterns import Select, match_patterns, path_name, rename_key_paths

Axes: TypeAlias = tuple[int, ...]
Transpose: TypeAlias = Select | Mapping[str, Sequence[int]]

_ARRAYS = frozenset({"jax", "numpy"})
_MATRIX: Axes = (1, 0)
_SHOWN = 20


def transpose_index(
    index: Index, transpose: Transpose, *, where: str
) -> tuple[Index, dict[int, Axes]]:
    """Return the index with transposed shapes, and the axes of each transposed leaf.

    Arrays without axes or with one axis stay unchanged, as do PRNG keys and Python values.

    Args:
        index: the index of the leaves to load, under their new paths.
        transpose: patterns of matrices, or a mapping of patterns to axes, of which the first that
            matches a leaf counts.
        where: the checkpoint's name for errors.

    Raises:
        MismatchError: a pattern matches nothing; nothing is transposed; or a leaf has another
            number of axes than its pattern names.
    """
    leaves = list(index.leaves)
    orders = _orders([leaf.key_path for leaf in leaves], transpose, index.naming, where)
    axes: dict[int, Axes] = {}
    problems = []
    for i, order in enumerate(orders):
        leaf = leaves[i]
        if order is None or leaf.kind not in _ARRAYS or len(leaf.shape) < 2:
            continue
        if len(order) != len(leaf.shape):
            problems.append(f"{format_path(leaf.key_path)}: {_explain(leaf, order, transpose)}")
            continue
        axes[i] = order
        leaves[i] = leaf._replace(shape=permute_shape(leaf.shape, order))
    if problems:
        lines = first_lines(problems, _SHOWN)
        raise MismatchError(f"transpose does not fit leaves of {where}:\n{lines}")
    if not axes:
        patterns = [transpose] if isinstance(transpose, str) else transpose
        raise MismatchError(
            f"transpose changes nothing of {where}: no array of two axes or more matches "
            f"{', '.join(map(repr, patterns))}"
        )
    return index._replace(leaves=tuple(leaves)), axes


def permute_shape(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return the shape of an array after transposition."""
    return tuple([shape[axis] for axis in axes])


def stored_box(box: Box, axes: Axes | None) -> Box:
    """Return the box of the stored array that becomes `box` of the transposed one."""
    if axes is None:
        return box
    start, stop = [0] * len(axes), [0] * len(axes)
    for to, axis in enumerate(axes):
        start[axis], stop[axis] = box.start[to], box.stop[to]
    return Box(tuple(start), tuple(stop))


def find_transposition(stored: Sequence[int], target: Sequence[int]) -> Axes | None:
    """Return the axes that turn one shape into the other, as needed for PyTorch's weights.

    Only two orders are tried: the reversed one, and that of a convolution, (out, in, ...) to
    (..., in, out). Return None if neither fits.
    """
    count = len(stored)
    for axes in (tuple(range(count))[::-1], (*range(2, count), 1, 0)):
        if 2 <= count == len(target) and permute_shape(stored, axes) == tuple(target):
            return axes
    return None


def _orders(
    paths: Sequence[KeyPath], transpose: Transpose, naming: Naming, where: str
) -> list[Axes | None]:
    """Return the requested order of axes for each leaf, even for leaves that are no arrays."""
    names = [path_name(path, naming) for path in paths]
    entries = list(transpose.items()) if isinstance(transpose, Mapping) else [(transpose, _MATRIX)]
    if not entries:
        raise ValueError("transpose: there is no pattern; None transposes nothing")
    orders: list[Axes | None] = [None] * len(names)
    for pattern, axes in reversed(entries):
        order = _checked(pattern, axes)
        taken = match_patterns(names, pattern, naming=naming, where=where, option="transpose")
        orders = [order if take else old for take, old in zip(taken, orders, strict=True)]
    return orders


def _checked(pattern: Select, axes: Sequence[int]) -> Axes:
    is_sequence = isinstance(axes, Sequence) and all(type(axis) is int for axis in axes)
    if is_sequence and sorted(axes) == list(range(len(axes))):
        return tuple(axes)
    kind = ValueError if is_sequence else TypeError
    raise kind(
        f"transpose: {pattern!r}: expected the numbers 0 to n-1 of n axes, each once, as "
        f"numpy.transpose takes them, found {axes!r:.80}"
    )


def _explain(leaf: Leaf, order: Axes, transpose: Transpose) -> str:
    """Return the reason why the order of axes does not fit a leaf."""
    count = len(leaf.shape)
    axes = f"it has {count} axes, {list(leaf.shape)}"
    if isinstance(transpose, Mapping):
        return f"{axes}, and {order} is for {len(order)}"
    example = {format_path(leaf.key_path): (*range(2, count), 1, 0)}
    return (
        f"{axes}, and patterns by themselves are for matrices: leave it out with "
        f"'!...', or say the order of its axes (of a convolution of PyTorch, transpose={example})"
    )


class SelectedLeaves(NamedTuple):
    """Some leaves of an index, as an index of their own."""

    stored: Index
    numbers: tuple[int, ...]  # the positions of its leaves in the original index
    left_out: frozenset[KeyPath] = frozenset()  # the new paths of leaves that are not selected
    axes: Mapping[int, Axes] = {}  # of transposed leaves, by position in `stored`


class _Item(NamedTuple):
    """A leaf or an empty container: one end of a structure."""

    path: KeyPath
    above: tuple[Node, ...]  # the containers around it, the outermost first
    node: Node
    number: int  # of the leaf; -1 for an empty container


def select_leaves(
    index: Index,
    *,
    select: Select | None,
    rename: Mapping[str, str] | None,
    transpose: Transpose | None = None,
    where: str,
) -> SelectedLeaves:
    """Return the selected leaves of an index, with new names and transposed shapes.

    A list or tuple that loses an element becomes a dict of the remaining elements by position;
    the type name of the dict says "list" or "tuple". Its leaves keep their key paths.

    Args:
        index: the index of the checkpoint.
        select: patterns over its key paths (`plan.path_patterns`); None: everything.
        rename: rules for new key paths (`plan.path_patterns`); None: keep the paths.
        transpose: patterns over the new paths; None: no transposition.
        where: the checkpoint's name for errors.

    Raises:
        MismatchError: a pattern or a rule matches nothing, or two leaves get the same path, or
            a leaf cannot be transposed as requested.
    """
    selection = SelectedLeaves(index, tuple(range(len(index.leaves))))
    if select is not None or rename:
        selection = _select_and_rename(index, select=select, rename=rename, where=where)
    if transpose is None:
        return selection
    stored, axes = transpose_index(selection.stored, transpose, where=where)
    return selection._replace(stored=stored, axes=axes)


def _select_and_rename(
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
            problems.append(f"  {format_path(other)} and {format_path(old)}: {path_label(new)}")
    for new, old in first.items():
        for stop in range(len(new)):
            other = first.get(new[:stop], old)
            if other is not old:
                problems.append(
                    f"  {format_path(other)}: {path_label(new[:stop])}, a leaf and above it"
                )
    if problems:
        raise MismatchError("rename gives one name twice:\n" + "\n".join(problems[:20]))


class _Container:
    """A container of a new structure, under construction."""

    __slots__ = ("children", "sources")

    def __init__(self) -> None:
        self.children: dict[Key, _Container | int] = {}
        self.sources: dict[int, Node] = {}  # the original containers of its items, by identity


def _structure(
    items: Sequence[_Item], named: Sequence[KeyPath]
) -> tuple[Structure, tuple[int, ...]]:
    """Return a structure that holds the items under their new paths.

    Returns:
        The structure; the positions in `items` of its leaves, in its order.
    """
    if not items:
        return (Node("dict"),), ()
    if not named[0]:
        return (items[0].node,), (0,) if items[0].number >= 0 else ()
    root = _Container()
    for n, (item, path) in enumerate(zip(items, named, strict=True)):
        container = root
        old = item.path if len(item.path) == len(item.above) else path
        front = _common(old, path)
        back = _common(old[::-1], path[::-1])
        for depth, key in enumerate(path):
            if depth <= front and depth < len(item.above):
                source = item.above[depth]
                container.sources.setdefault(id(source), source)
            elif len(path) - depth <= back and len(path) - depth <= len(item.above):
                source = item.above[depth - len(path)]
                container.sources.setdefault(id(source), source)
            if depth == len(path) - 1:
                container.children[key] = n
            else:
                inner = container.children.setdefault(key, _Container())
                assert isinstance(inner, _Container)
                container = inner
    nodes: list[Node] = []
    order: list[int] = []
    stack: list[_Container | int] = [root]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            nodes.append(items[top].node)
            if items[top].number >= 0:
                order.append(top)
            continue
        node, keys = _node_of(top)
        nodes.append(node)
        stack.extend(top.children[key] for key in reversed(keys))
    return tuple(nodes), tuple(order)


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
    sources = list(container.sources.values())
    kinds = {source.kind for source in sources}
    if all(type(key) is int for key in keys):
        keys.sort(key=lambda key: cast("int", key))
        whole = all(source.size == len(keys) for source in sources)
        if whole and keys == list(range(len(keys))) and kinds in (set(), {"list"}, {"tuple"}):
            return Node("tuple" if "tuple" in kinds else "list", len(keys)), keys
    node_keys: tuple[Any, ...] = tuple(DictKey(key) if type(key) is int else key for key in keys)
    (source,) = sources if len(sources) == 1 else [Node("dict")]
    if source.keys == node_keys:
        return source, keys
    was = source.kind if source.kind in ("list", "tuple") else ""
    return Node("dict", len(node_keys), node_keys, was), keys
