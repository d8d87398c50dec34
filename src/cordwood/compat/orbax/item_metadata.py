"""Metadata of stored items: shapes and dtypes of their leaves, and what is stored beside them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.compat.orbax.args import Composite
from cordwood.compat.orbax.items_to_store import DEFAULT_ITEM
from cordwood.compat.orbax.leaf_metadata import (
    ArrayMetadata,
    ScalarMetadata,
    StringMetadata,
    TreeMetadata,
)
from cordwood.compat.orbax.restore_tree import rebuild, stored_name
from cordwood.compat.orbax.stored_items import StoredItems
from cordwood.index import ARRAY_KINDS, Leaf
from cordwood.loading.checkpoint import open_at

_NUMBER_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}


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
