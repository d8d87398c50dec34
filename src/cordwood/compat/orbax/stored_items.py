"""The items of a stored checkpoint, also of one that Orbax wrote: their kinds, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cordwood.compat.orbax import args as arguments
from cordwood.compat.orbax.handlers import CheckpointHandler
from cordwood.compat.orbax.items_to_store import DEFAULT_ITEM, NO_TREE, handler_for
from cordwood.compat.orbax.leaf_requests import request_of_args, request_of_leaf
from cordwood.compat.orbax.restore_arguments import RestoreArgs
from cordwood.compat.orbax.restore_tree import TreeRequest, named_leaves, restore_tree
from cordwood.encoding.strict_json import parse_json
from cordwood.formats.step_record import PREFIX_KEY, Record
from cordwood.formats.stored_trees import StoredTrees, stored_trees
from cordwood.formats.table import DEFAULT
from cordwood.loading.checkpoint import open_at
from cordwood.manager.items.foreign_items import foreign_extras, load_foreign_item
from cordwood.manager.items.items_to_restore import load_item
from cordwood.manager.items.recorded_items import ITEM
from cordwood.manager.items.stateful import is_stateful, set_state
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.scratch.scratch_directory import read_in_scratch

# In the metadata of a single checkpoint: its items that are JSON, and the name of its first tree.
JSON_KEY, NAME_KEY = "cordwood-json", "cordwood-item"


class StoredItems(NamedTuple):
    """The items of a checkpoint, by their names; `DEFAULT_ITEM` is the tree without a name.

    Attributes:
        location: the checkpoint.
        trees: the names of the trees, and of each the prefix by which it is loaded.
        json: the values that are JSON.
        others: the names of the other items.
        record: the record of a manager's step; None for other checkpoints.
        stored: the items of a checkpoint of another tool; None: cordwood wrote it.
    """

    location: Location
    trees: Mapping[str, str | None]
    json: Mapping[str, Any]
    others: tuple[str, ...]
    record: Record | None
    stored: StoredTrees | None

    @property
    def names(self) -> list[str]:
        """The names of all items, sorted."""
        return sorted({*self.trees, *self.json, *self.others} - {"metrics"})

    @property
    def is_single(self) -> bool:
        """True if there is one item, which has no name of its own."""
        return DEFAULT_ITEM in self.names


def stored_items(location: Location, record: Record | None) -> StoredItems:
    """Return the items of a checkpoint.

    Args:
        location: the checkpoint.
        record: its record, if a manager of cordwood saved it as a step.
    """
    stored = stored_trees(location)
    trees: dict[str, str | None] = {name: name for name in stored.names if name}
    metadata: Mapping[str, str] = {}
    if "" in stored.names:
        if stored.format is DEFAULT:
            with open_at(location, prefix="") as checkpoint:
                metadata = checkpoint.metadata
        trees[metadata.get(PREFIX_KEY if record else NAME_KEY, DEFAULT_ITEM)] = None
        trees.pop(NO_TREE, None)
    if record is not None:
        states = [name for name, item in record.items.items() if item != ITEM]
        trees = {name: prefix for name, prefix in trees.items() if name not in states}
        extras = record.extras if isinstance(record.extras, dict) else {}
        return StoredItems(location, trees, deepcopy(extras), tuple(states), record, None)
    if stored.format is DEFAULT:
        json = parse_json(metadata.get(JSON_KEY, "{}"), f"{location}: {JSON_KEY}")
        return StoredItems(location, trees, json, (), None, None)
    json = dict(foreign_extras(location, stored) or {})
    others = tuple(name for name in stored.others if name not in json)
    return StoredItems(location, trees, json, others, None, stored)


def restore_items(
    items: StoredItems,
    requests: Mapping[str, Any],
    handlers: Mapping[str, CheckpointHandler],
    group: ProcessGroup,
) -> dict[str, Any]:
    """Return items of a checkpoint by name.

    Args:
        items: the items of the checkpoint.
        requests: the arguments of each item to restore, such as `args.StandardRestore(target)`;
            None: as it was saved.
        handlers: the handlers of users, by the names of items.
        group: the processes that restore them together.

    Raises KeyError if there is no item of a name.
    """
    with group.rendezvous(f"restore {items.location} of") as processes:
        return {
            name: _restore_item(items, name, value, handlers, processes)
            for name, value in sorted(requests.items())
        }


def _restore_item(
    items: StoredItems,
    name: str,
    value: Any,
    handlers: Mapping[str, CheckpointHandler],
    processes: Rendezvous,
) -> Any:
    handler = handler_for(name, value, handlers)
    if handler is not None:
        return _restored_by(handler, items, name, value)
    if name in items.json:
        return items.json[name]
    if name in items.trees:
        return restore_tree(items.location, items.trees[name], tree_request(value))
    if name not in items.others:
        raise KeyError(
            f"{items.location} has no item {name!r}; it has: {', '.join(items.names) or 'none'}"
        )
    target = getattr(value, "item", None)
    options: dict[str, Any] = {"progress": None}
    if items.record is not None:
        saved = items.record.items[name]
        state = load_item(items.location, name, saved, target, options, processes)
    else:
        assert items.stored is not None
        trees = items.stored
        state = load_foreign_item(items.location, name, target, options, processes, trees=trees)
    if not is_stateful(target):
        return state
    set_state(target, state)
    return target


def _restored_by(handler: CheckpointHandler, items: StoredItems, name: str, value: Any) -> Any:
    """Return what a user's handler makes of the files of an item."""
    if name in items.trees and items.stored is None:
        files = restore_tree(items.location, items.trees[name], TreeRequest())
        data = {path: np.asarray(content).tobytes() for path, content in files.items()}
        return read_in_scratch(data, lambda folder: handler.restore(Path(folder), args=value))
    if items.stored is not None and isinstance(items.location, LocalPath):
        return handler.restore(Path(items.location.child(name)), args=value)
    raise KeyError(
        f"{items.location} has no files of an item {name!r}; it has: {', '.join(items.names)}"
    )


def tree_request(value: Any) -> TreeRequest:
    """Return the request that the arguments of an item make.

    Raises ValueError for transforms, and for a target that is none.
    """
    item = getattr(value, "item", None)
    if isinstance(value, arguments.StandardRestore):
        if item is None:
            return TreeRequest()
        leaves, _ = named_leaves(item)
        strict, fallback = value.strict, value.fallback_sharding
        requests = {
            name: request_of_leaf(leaf, strict=strict, fallback=fallback)
            for name, leaf in leaves.items()
            if leaf is not ...
        }
        return TreeRequest(item, requests)
    restore_args = getattr(value, "restore_args", None)
    partial = bool(getattr(value, "partial_restore", False))
    transforms = getattr(value, "transforms", None)
    if transforms or getattr(value, "legacy_transform_fn", None) is not None:
        raise ValueError(
            "transforms and legacy_transform_fn: only transforms={} is taken; cordwood.load has "
            "rename=, transpose= and recipe= for other names and shapes"
        )
    if transforms is not None:
        if item is None:
            raise ValueError("transforms={}: expected item=, the tree to restore, found None")
        partial = True
    if restore_args is None:
        return TreeRequest(item, None, partial)
    leaves, _ = named_leaves(restore_args, is_leaf=_is_restore_args)
    return TreeRequest(item, {name: request_of_args(a) for name, a in leaves.items()}, partial)


def _is_restore_args(value: Any) -> bool:
    return isinstance(value, RestoreArgs) or hasattr(value, "restore_type")
