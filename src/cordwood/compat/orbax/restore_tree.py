"""The restoring of a tree by the rules of Orbax: leaves are matched by their names alone.

The name of a leaf is the tuple of its keys as text. So a list fits a tuple, and a dict fits a class
with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.compat.orbax.leaf_metadata import TreeMetadata
from cordwood.compat.orbax.leaf_requests import LeafRequest, differs, target_of
from cordwood.errors import CordwoodError, MismatchError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.index import Index, Leaf, Node
from cordwood.io.stale_handles import retry_stale
from cordwood.keypath import DictKey
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.open_reader import open_reader
from cordwood.loading.restore_targets import restore_targets
from cordwood.message_text import first_lines
from cordwood.storage.locations import Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.threads.garbage_collector import gc_paused
from cordwood.tree.flatten import build_tree

Name: TypeAlias = tuple[str, ...]
_MAX_LINES = 20


class TreeRequest(NamedTuple):
    """A tree to restore.

    Attributes:
        item: the tree whose structure the result has; None: the structure that was saved.
        requests: how to restore each leaf of `item`, by its name; None: leaves as they were saved.
        partial: leave out what `item` lacks, and keep the leaves of `item` that are not stored.
    """

    item: Any = None
    requests: Mapping[Name, LeafRequest] | None = None
    partial: bool = False


def named_leaves(tree: Any, is_leaf: Any = None) -> tuple[dict[Name, Any], Any]:
    """Return the leaves of a tree by their names, and its structure."""
    import jax

    tree = tree.tree if isinstance(tree, TreeMetadata) else tree
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return {tuple([_text_of(key) for key in path]): leaf for path, leaf in leaves}, structure


def _text_of(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


@gc_paused()
def restore_tree(location: Location, prefix: str | None, request: TreeRequest) -> Any:
    """Return a tree of a checkpoint.

    Args:
        location: the checkpoint, of any format.
        prefix: the name of the tree in it; None: the only one, or the one without a name.
        request: what to make of it.

    Raises MismatchError, which is a ValueError, where names or shapes differ.
    """
    options = OpenOptions(None, read_once=True)

    def read() -> Any:
        reader = open_reader(location, format=None, prefix=prefix, options=options)
        with closing(reader.opened):
            try:
                return _restore(reader, request)
            except CordwoodError as e:
                if reader.opened.is_current():
                    raise
                raise ReplacedError(e) from e

    return retry_stale(lambda: retry_reading(read))


def _restore(reader: LeafReader, request: TreeRequest) -> Any:
    stored = {stored_name(leaf): leaf for leaf in reader.index.leaves}
    if len(stored) < len(reader.index.leaves):
        raise MismatchError(
            f"{reader.path}: leaves have the same name for Orbax, such as those of the keys 1 and "
            "'1' of a dict; cordwood.load reads them"
        )
    requests = request.requests or {}
    if request.item is None:
        if request.requests is not None and not request.partial:
            _require_same(reader.path, stored, requests)
        values = _values(reader, stored, requests)
        return rebuild(reader.index, [values[name] for name in stored])
    leaves, structure = named_leaves(request.item)
    if not request.partial:
        _require_same(reader.path, stored, leaves)
    chosen = {name: stored[name] for name in leaves if name in stored and leaves[name] is not ...}
    values = _values(reader, chosen, requests)
    return structure.unflatten([values.get(name, leaf) for name, leaf in leaves.items()])


def stored_name(leaf: Leaf) -> Name:
    """Return the name of a stored leaf: its keys as text."""
    return tuple([str(key.value if isinstance(key, DictKey) else key) for key in leaf.key_path])


def _require_same(path: str, stored: Mapping[Name, Leaf], names: Any) -> None:
    requested = set(names)
    lines = [f"  {'/'.join(name)}: only in the checkpoint" for name in stored.keys() - requested]
    lines += [f"  {'/'.join(name)}: only in the target" for name in requested - stored.keys()]
    if lines:
        raise MismatchError(
            f"{path}: the checkpoint and the target have different leaves:\n"
            f"{first_lines(sorted(lines), _MAX_LINES)}\nPyTreeRestore(item, partial_restore=True) "
            "leaves out what the target lacks, and keeps leaves of the target that are not stored"
        )


def _values(
    reader: LeafReader, stored: Mapping[Name, Leaf], requests: Mapping[Name, LeafRequest]
) -> dict[Name, Any]:
    asked = {name: requests.get(name, LeafRequest()) for name in stored}
    targets = [target_of(leaf, asked[name]) for name, leaf in stored.items()]
    values = dict(zip(stored, restore_targets(reader, targets), strict=True))
    for name, leaf in stored.items():
        request = asked[name]
        if differs(leaf, request) and request.shape is not None:
            values[name] = _resized(values[name], request)
    return values


def _resized(array: np.ndarray, request: LeafRequest) -> Any:
    """Return an array padded with zeros at the ends of its axes, or cut there."""
    shape = request.shape or ()
    if len(shape) != array.ndim:
        raise MismatchError(
            f"an array of the shape {array.shape} is neither padded nor cut to {shape}: the number "
            "of axes differs"
        )
    result = np.zeros(shape, array.dtype)
    common = tuple(slice(min(pair)) for pair in zip(shape, array.shape, strict=True))
    result[common] = array[common]
    if request.type is np.ndarray:
        return result
    import jax

    return jax.device_put(result, request.sharding)


def rebuild(index: Index, leaves: Sequence[Any]) -> Any:
    """Return a tree of lists, dicts with keys that are text, and None, as Orbax returns one."""
    nodes = [_plain(node) for node in index.structure]
    return build_tree(tuple(nodes), leaves)


def _plain(node: Node) -> Node:
    if node.kind == "tuple" and node.size:
        return Node("list", node.size)
    if node.kind in ("dict", "namedtuple", "object"):
        if not node.size and node.kind != "dict":
            return Node("none")
        keys = [str(key.value if isinstance(key, DictKey) else key) for key in node.keys]
        keys = keys or [str(position) for position in range(node.size)]
        return Node("dict", node.size, tuple(keys))
    return node
