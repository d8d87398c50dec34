"""Items to restore beside a tree, from a step of another tool: trees, JSON, random keys, states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import MismatchError
from cordwood.formats.load_format import other_item_reader_of
from cordwood.formats.stored_item import (
    ItemKind,
    IteratorItem,
    JaxKeyItem,
    JsonItem,
    NumpyStateItem,
)
from cordwood.formats.stored_trees import StoredTrees
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_checkpoint
from cordwood.manager.items.resplit_states import METHODS_TEXT, is_resplittable, resplit_states
from cordwood.manager.items.stateful import is_stateful
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at

_MAX_STATE_BYTES = 1 << 28


def foreign_extras(path: Location, trees: StoredTrees) -> Mapping[str, Any] | None:
    """Return the small values beside the trees of a step, by name; None if there are none."""
    if not trees.others:
        return None
    return other_item_reader_of(trees.format).read_extras(path, trees.others)


def load_foreign_item(
    path: Location,
    name: str,
    item: Any,
    options: Mapping[str, Any],
    processes: Rendezvous,
    *,
    trees: StoredTrees,
) -> Any:
    """Return an item of a step of another tool.

    Args:
        path: the path of the step.
        name: the name of the item.
        item: its target: an object with a state, a tree as `like` is one, or None.
        options: as in `cordwood.load`, for a tree.
        processes: the processes that restore the step, which have a state each.
        trees: the trees and other items of the step.

    Raises MismatchError if the item is of another kind.
    """
    kind = trees.kinds[name]
    if kind is ItemKind.TREE:
        like = None if is_stateful(item) else item
        return load_checkpoint(path, like, LoadOptions(**options), prefix=name)
    if kind is ItemKind.UNKNOWN:
        raise MismatchError(f"{path}: the item {name!r} is {kind}: read it with what wrote it")
    match other_item_reader_of(trees.format).read_item(path, name, kind):
        case JsonItem(value):
            return value
        case JaxKeyItem() as key:
            return _jax_key(key, item)
        case NumpyStateItem(location, is_legacy):
            state = load_checkpoint(location, None, LoadOptions(to="numpy"))
            return tuple(state) if is_legacy else state
        case IteratorItem() as states:
            return _state_of_iterator(path, name, states, item, processes)


def _state_of_iterator(
    path: Location, name: str, states: IteratorItem, item: Any, processes: Rendezvous
) -> Any:
    """Return the state that was saved for this process: bytes for Grain's loaders, else JSON."""
    if not is_stateful(item) and item is not None:
        raise MismatchError(
            f"{path}: the item {name!r} holds the states of an iterator: give the iterator, which "
            "has get_state and set_state, or None for the state itself"
        )
    file = states.file_of(processes.index, count=processes.count)
    saved_count = len(states.files)
    every = [states.file_of(index, count=saved_count) for index in range(saved_count)]
    if file in states.files:
        files = [file]
    elif {*states.files} == {*every} and is_resplittable(item):
        files = every
    else:
        raise MismatchError(
            f"{path}: the item {name!r} has {', '.join(states.files)}, and no {file}: it was "
            "saved by another number of processes; give the iterator the methods "
            f"{METHODS_TEXT}, or restore without it, and set it yourself"
        )
    is_bytes = hasattr(item, "get_state") and isinstance(item.get_state(), bytes)
    values: list[Any] = []
    with directory_at(path) as directory:
        for each in files:
            data = directory.read(f"{name}/{each}", limit_bytes=_MAX_STATE_BYTES)
            where = f"{path}/{name}/{each}"
            values.append(data if is_bytes else parse_json(data, where, allow_nan=True))
    if file in states.files:
        return values[0]
    return resplit_states(
        item, values, process_index=processes.index, process_count=processes.count
    )


def _jax_key(key: JaxKeyItem, item: Any) -> Any:
    """Return a random key of jax; a typed one has the implementation of `item`."""
    import jax

    loaded = load_checkpoint(key.data, None, LoadOptions(to="jax"))
    (data,) = loaded.values() if isinstance(loaded, dict) else (loaded,)
    if not key.is_typed:
        return data
    is_key = str(getattr(item, "dtype", "")).startswith("key<")
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(item) if is_key else None)
