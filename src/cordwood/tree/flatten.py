"""Flattening and unflattening of trees, natively and without recursion; trees as formats see them.

dict, list, tuple, named tuple, OrderedDict, defaultdict and None are handled here. Any other type
that is registered with jax as a pytree node is flattened by its registration, one level at a
time. jax is never imported for this: types can be registered only where it is already imported.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.index import ARRAY_KINDS, LEAF, MAX_DEPTH, LeafSpec, Node, Structure
from cordwood.keypath import DictKey, Key, KeyPath, format_path, is_dict_key, path_label
from cordwood.sharding.boxes import ShardGrid, shard_grid, single_process_grid
from cordwood.tree.leaves import (
    DeferredArray,
    describe_leaf,
    is_jax_array,
    is_tree_def,
    name_of_path,
)
from cordwood.tree.nnx_modules import NnxBuilder, is_module, is_state, split_module

Builder: TypeAlias = Callable[[list[Any]], Any]


class FlatTree(NamedTuple):
    """A flattened tree."""

    structure: Structure
    paths: tuple[KeyPath, ...]  # of the leaves, in the order of the structure
    leaves: tuple[Any, ...]
    builders: tuple[Builder | None, ...]  # one for each node; None for a leaf


class _OpenNode(NamedTuple):
    """One level of a tree: a node, its children, and the function that rebuilds it."""

    node: Node
    keys: Sequence[Key]
    children: Sequence[Any]
    builder: Builder


def flatten(tree: Any) -> FlatTree:
    """Flatten a tree into structure, key paths and leaves; return a FlatTree unchanged.

    Dicts keep their insertion order. The types of leaves are not checked here.

    Raises:
        UnsupportedLeafError: a dict has a key that cannot be stored exactly.
        LimitError: the tree nests deeper than MAX_DEPTH.
    """
    if type(tree) is FlatTree:
        return tree
    nodes: list[Node] = []
    builders: list[Builder | None] = []
    paths: list[KeyPath] = []
    leaves: list[Any] = []
    stack: list[tuple[KeyPath, Any]] = [((), tree)]
    leaf_types: set[type] = set()  # of leaves so far: the type alone decides
    while stack:
        path, value = stack.pop()
        opened = None if type(value) in leaf_types else _open(value, path)
        if opened is None:
            leaf_types.add(type(value))
            nodes.append(LEAF)
            builders.append(None)
            paths.append(path)
            leaves.append(value)
            continue
        nodes.append(opened.node)
        builders.append(opened.builder)
        if len(path) >= MAX_DEPTH and opened.children:
            raise LimitError(
                f"the tree nests deeper than {MAX_DEPTH} levels "
                f"(at {format_path(path)[:80]}...); a container may hold itself"
            )
        stack.extend(
            [
                ((*path, key), child)
                for key, child in zip(reversed(opened.keys), reversed(opened.children), strict=True)
            ]
        )
    return FlatTree(tuple(nodes), tuple(paths), tuple(leaves), tuple(builders))


def unflatten(flat: FlatTree, leaves: Sequence[Any]) -> Any:
    """Return a tree of the same structure and types as the flattened one, with other leaves."""
    return _assemble(flat.structure, flat.builders, leaves)


def build_tree(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return a tree of plain dicts, lists, tuples and None from a stored structure.

    Named tuples and other nodes become dicts of their fields.
    """
    return _assemble(
        structure, [None if node is LEAF else _plain_builder(node) for node in structure], leaves
    )


def _assemble(
    structure: Structure, builders: Iterable[Builder | None], leaves: Sequence[Any]
) -> Any:
    # Pre-order backwards: when a container is reached, its children are on top of the stack, the
    # first one uppermost. All leaves between two containers are pushed at once.
    stack: list[Any] = []
    remaining = list(leaves)
    end = len(structure)
    containers = [(i, builder) for i, builder in enumerate(builders) if builder is not None]
    for i, builder in reversed(containers):
        _move_last(remaining, end - i - 1, stack)
        children: list[Any] = []
        _move_last(stack, structure[i].size, children)
        stack.append(builder(children))
        end = i
    _move_last(remaining, end, stack)
    if remaining or len(stack) != 1:
        raise ValueError(f"{len(leaves)} leaves do not fill the structure")
    return stack[0]


def _move_last(items: list[Any], count: int, target: list[Any]) -> None:
    """Move the last `count` items to `target`, the last one first."""
    start = len(items) - count
    target += items[start:][::-1]
    del items[start:]


def _plain_builder(node: Node) -> Builder | None:
    if node.kind == "leaf":
        return None
    if node.kind == "none":
        return lambda _: None
    if node.kind in ("list", "tuple"):
        return list if node.kind == "list" else tuple
    keys = [key.value if isinstance(key, DictKey) else key for key in node.keys]
    return lambda children: dict(zip(keys, children, strict=True))


def _open(value: Any, path: KeyPath) -> _OpenNode | None:
    """Flatten one level of a tree; return None for a leaf."""
    kind = type(value)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        return _open_dict(value, path)
    if kind is list or kind is tuple:
        node = Node("list" if kind is list else "tuple", len(value))
        return _OpenNode(node, range(len(value)), value, kind)
    if value is None:
        return _OpenNode(Node("none"), (), (), lambda _: None)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        if any(map(is_tree_def, value)):
            # If it is registered with jax, the PyTreeDefs may be static data, as in jax's example
            # optimizers (and numpyro's, which use them).
            opened = _open_registered_node(value)
            if opened is not None and not any(map(is_tree_def, opened.children)):
                return opened
        fields = tuple(value._fields)
        node = Node("namedtuple", len(fields), fields, kind.__qualname__)
        return _OpenNode(node, fields, value, kind._make)
    if kind.__module__ == "numpy" or kind in (bool, int, float, complex, str, bytes):
        return None
    return None if is_jax_array(value) else _open_registered_node(value)


def _open_dict(value: dict[Any, Any], path: KeyPath) -> _OpenNode:
    kind = type(value)
    keys = tuple(key if type(key) is str else _wrap(key, path) for key in value)
    original_keys = tuple(value)
    build: Callable[[Any], Any] = kind
    if isinstance(value, defaultdict):
        build = partial(defaultdict, value.default_factory)
    node = Node("dict", len(keys), keys, "" if kind is dict else kind.__name__)
    return _OpenNode(
        node,
        keys,
        list(value.values()),
        lambda children: build(zip(original_keys, children, strict=True)),
    )


def _wrap(key: Any, path: KeyPath) -> DictKey:
    if is_dict_key(key):
        return DictKey(key)
    raise UnsupportedLeafError(
        f"{path_label(path)}: dict key {key!r} is of type "
        f"{type(key).__module__}.{type(key).__qualname__}; only str, int, bool, finite float, "
        "None, bytes and tuples of these can be stored; convert the key"
    )


def _open_registered_node(value: Any) -> _OpenNode | None:
    registered = open_registered(value)
    if registered is None:
        return None
    keys = [DictKey(key) if isinstance(key, int) else key for key in registered.keys]
    if len(set(keys)) < len(keys):  # the registration gives one key to two children
        keys = [DictKey(position) for position in range(len(keys))]
    node = Node("object", len(keys), tuple(keys), type(value).__qualname__)
    return _OpenNode(node, keys, registered.children, registered.unflatten)


class RegisteredNode(NamedTuple):
    """One node: its keys, its children, and the function that rebuilds it from other children."""

    keys: list[Key]
    children: list[Any]
    unflatten: Callable[[list[Any]], Any]


def open_registered(value: Any) -> RegisteredNode | None:
    """Flatten one level of a node; return None if jax is not loaded or `value` is a leaf for it."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None:
        return None
    if is_module(value):
        graphdef, state = split_module(value)
        node = open_registered(state)
        assert node is not None
        return node._replace(unflatten=NnxBuilder(node.unflatten, value, graphdef))
    root = iter([False])  # all below is a leaf: even the node itself, if it is its own child
    entries, treedef = tree_util.tree_flatten_with_path(value, is_leaf=lambda _: next(root, True))
    if len(entries) == 1 and not entries[0][0]:
        return None
    return RegisteredNode(
        keys=[_key(path[0]) for path, _ in entries],
        children=[child for _, child in entries],
        unflatten=NnxBuilder(treedef.unflatten) if is_state(value) else treedef.unflatten,
    )


def _key(entry: Any) -> Key:
    """Return the key for a jax key path entry: 0 for SequenceKey(0), 'x' for GetAttrKey('x')."""
    key = entry_key(entry)
    if key is entry or isinstance(key, str):
        return str(key)
    if type(key) is int:
        return DictKey(key) if type(entry).__name__ == "DictKey" else key
    return DictKey(key) if is_dict_key(key) else str(key)


def entry_key(entry: Any) -> Any:
    """Return the value of a jax key path entry; the entry if it is of an unknown kind."""
    names = ("key", "name", "idx")
    return next((getattr(entry, name) for name in names if hasattr(entry, name)), entry)


class DescribedTree(NamedTuple):
    """The structure, leaves and shards of a tree to save, without an element."""

    structure: Structure
    specs: tuple[LeafSpec, ...]
    shards: tuple[ShardGrid, ...]  # of each leaf: its cells, and which processes hold them
    leaves: tuple[Any, ...]  # the caller's
    local: tuple[int, ...]  # the arrays that every process holds for itself


def describe_tree(tree: Any, *, process: int, process_count: int) -> DescribedTree:
    """Return the structure of a tree, and the type and shards of its leaves.

    What jax has not spread over several processes (numpy arrays, Python values, arrays on this
    process's devices) counts as process 0's: every process has its own.

    Raises UnsupportedLeafError for a leaf that cannot be stored; names its key path.
    """
    flat = flatten(tree)
    specs = tuple(
        [
            describe_leaf(path, leaf, allow_remote=process_count > 1)
            for path, leaf in zip(flat.paths, flat.leaves, strict=True)
        ]
    )
    cache: dict[tuple[Any, tuple[int, ...]], ShardGrid] = {}
    shards = [
        _shards(spec, leaf, process, process_count, cache)
        for spec, leaf in zip(specs, flat.leaves, strict=True)
    ]
    single_holder = ((0,),)
    local = [
        i
        for i, (spec, shard, leaf) in enumerate(zip(specs, shards, flat.leaves, strict=True))
        if spec.kind in ARRAY_KINDS
        and single_holder == tuple(set(shard.holders))
        and not (type(leaf) is DeferredArray and leaf.shards is not None)
    ]
    return DescribedTree(flat.structure, specs, tuple(shards), flat.leaves, tuple(local))


def _shards(
    spec: LeafSpec,
    leaf: Any,
    process: int,
    process_count: int,
    cache: dict[tuple[Any, tuple[int, ...]], ShardGrid],
) -> ShardGrid:
    if type(leaf) is DeferredArray and leaf.shards is not None:
        return leaf.shards
    sharding = leaf.sharding if is_jax_array(leaf) else None
    if sharding is not None and len(sharding.device_set) == 1 and sharding.is_fully_addressable:
        sharding = None
    shape = spec.shape
    key = (sharding, shape)
    if key in cache:
        return cache[key]
    if sharding is None:
        cache[key] = single_process_grid(shape)
        return cache[key]
    # Of a PRNG key array the shape is that of its data, which has axes more, all whole.
    grid = shard_grid(sharding, leaf.shape)
    holders = grid.holders
    processes = {holder for each in holders for holder in each}
    if process_count == 1 or processes == {process}:
        holders = ((0,),) * len(holders)
    elif len(processes) == 1:
        raise UnsupportedLeafError(
            f"{name_of_path(spec.key_path)}: an array on devices of process "
            f"{processes.pop()} alone, which process {process} holds too; spread it over all "
            "processes, or keep it out of the tree"
        )
    more = ((0,),) * (len(shape) - len(leaf.shape))
    cache[key] = ShardGrid(shape, (*grid.cuts, *more), holders)
    return cache[key]
