"""Metadata of stored items: shapes and dtypes of their leaves, and what is stored beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.compat.orbax.args import Composite
from cordwood.compat.orbax.items_to_store import DEFAULT_ITEM
from cordwood.compat.orbax.restore_tree import rebuild, stored_name
from cordwood.compat.orbax.stored_items import StoredItems
from cordwood.index import ARRAY_KINDS, Leaf
from cordwood.loading.checkpoint import open_at

_NUMBER_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}


@dataclass
class ArrayMetadata:
    """The shape and dtype of a stored array. Its sharding is not recorded: None."""

    name: str
    directory: str
    shape: tuple[int, ...]
    sharding: Any
    dtype: Any
    storage: Any = None


@dataclass
class ScalarMetadata(ArrayMetadata):
    """The dtype of a stored number."""


@dataclass
class StringMetadata:
    """A stored text, bytes, or another value that is no number."""

    name: str
    directory: str
    shape: Any = None
    sharding: Any = None
    dtype: Any = None


class TreeMetadata:
    """The metadata of a tree: `tree` has that of each leaf, and so have its keys."""

    def __init__(self, tree: Any, custom_metadata: Any = None) -> None:
        self.tree = tree
        self.custom_metadata = custom_metadata

    def __getitem__(self, key: Any) -> Any:
        return self.tree[key]

    def __contains__(self, key: object) -> bool:
        return key in self.tree

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __getattr__(self, name: str) -> Any:
        if name in ("keys", "values", "items", "get"):
            return getattr(self.tree, name)
        raise AttributeError(f"'TreeMetadata' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"TreeMetadata({self.tree!r})"


@dataclass
class StepMetadata:
    """The metadata of a step, or of a single checkpoint.

    Attributes:
        item_metadata: that of the item; a `Composite` if there are several.
        metrics: the metrics by name.
        custom_metadata: {}.
        item_handlers: {}; cordwood does not record handlers.
        commit_timestamp_nsecs: the time when the save began, since 1970; None: unknown.
    """

    item_metadata: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    custom_metadata: Mapping[str, Any] = field(default_factory=dict)
    item_handlers: Mapping[str, str] = field(default_factory=dict)
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None


def metadata_of_items(items: StoredItems, *, single: bool) -> Any:
    """Return the metadata of the only item, or of all items as a `Composite`."""
    if single:
        return _metadata_of(items, DEFAULT_ITEM)
    return Composite(**{name: _metadata_of(items, name) for name in items.names})


def _metadata_of(items: StoredItems, name: str) -> TreeMetadata | None:
    if name not in items.trees:
        return None
    _register(TreeMetadata)
    with closing(open_at(items.location, prefix=items.trees[name])) as checkpoint:
        index = checkpoint.index
    directory = str(items.location)
    return TreeMetadata(rebuild(index, [_of_leaf(leaf, directory) for leaf in index.leaves]))


def _of_leaf(leaf: Leaf, directory: str) -> ArrayMetadata | StringMetadata:
    name = ".".join(stored_name(leaf))
    if leaf.kind in _NUMBER_DTYPES or leaf.kind == "numpy_scalar":
        dtype = np.dtype(dtypes.to_numpy(_NUMBER_DTYPES.get(leaf.kind, leaf.dtype)))
        return ScalarMetadata(name, directory, (), None, dtype)
    if leaf.kind not in ARRAY_KINDS:
        return StringMetadata(name, directory)
    return ArrayMetadata(name, directory, leaf.shape, None, np.dtype(dtypes.to_numpy(leaf.dtype)))


_registered: list[type] = []


def _register(cls: type[TreeMetadata]) -> None:
    """Let jax.tree map over metadata, once jax is there."""
    jax = sys.modules.get("jax")
    if jax is not None and cls not in _registered:
        _registered.append(cls)
        jax.tree_util.register_pytree_node(
            cls,
            lambda metadata: ((metadata.tree,), metadata.custom_metadata),
            lambda custom, children: cls(children[0], custom),
        )
