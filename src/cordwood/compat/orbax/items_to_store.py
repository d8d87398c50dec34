"""The items of a save: trees, JSON and states, made of Orbax's arguments or by a user's handler."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cordwood.compat.orbax import args as arguments
from cordwood.compat.orbax.handlers import CheckpointHandler
from cordwood.manager.items.stateful import is_stateful
from cordwood.processes.process_group import ProcessGroup
from cordwood.saving.save_rendezvous import announce_errors
from cordwood.storage.scratch.scratch_directory import files_in_scratch

DEFAULT_ITEM = "default"  # the name of the item of a checkpoint that has one, without a name
NO_TREE = "no-tree"  # the name of the empty tree of a checkpoint whose items are no trees


class ItemsToStore(NamedTuple):
    """The items of one save, by their names."""

    trees: Mapping[str, Any]
    json: Mapping[str, Any]
    states: Mapping[str, Any]  # objects with a state, such as iterators


def items_to_store(
    items: Mapping[str, Any], handlers: Mapping[str, CheckpointHandler], group: ProcessGroup
) -> ItemsToStore:
    """Return the items of a save.

    Args:
        items: the arguments of each item, such as `args.StandardSave(tree)`.
        handlers: the handlers of users, by the names of items.
        group: the processes that save together.

    Raises:
        ValueError: a tree is none that Orbax's `StandardSave` takes.
        TypeError: the arguments of an item are of no kind that can be stored.
    """
    trees: dict[str, Any] = {}
    values: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for name, value in items.items():
        handler = handler_for(name, value, handlers)
        if handler is not None:
            trees[name] = _files_of(handler, value, group)
        elif isinstance(value, arguments.JsonSave):
            values[name] = json.loads(json.dumps(value.item))
        elif isinstance(value, arguments.StandardSave):
            _require_standard(value.item)
            trees[name] = _cast(value.item, value.save_args)
        elif isinstance(value, arguments.PyTreeSave | arguments.ArraySave):
            trees[name] = _cast(value.item, value.save_args)
        elif is_stateful(getattr(value, "item", None)):  # of Grain
            states[name] = value.item
        else:
            raise TypeError(
                f"the item {name!r}: expected arguments such as StandardSave(tree), PyTreeSave, "
                "ArraySave, JsonSave or Grain's CheckpointSave(iterator), or a handler of yours "
                "with save(directory, args) and restore(directory, args) in item_handlers=, found "
                f"{type(value).__name__}"
            )
    return ItemsToStore(trees, values, states)


def handler_for(
    name: str, value: Any, handlers: Mapping[str, CheckpointHandler]
) -> CheckpointHandler | None:
    """Return the user's handler of an item; None if it is one of the usual kinds."""
    if name in handlers:
        return handlers[name]
    registered = arguments.handler_class_of(value)
    return None if registered is None else registered()


def _files_of(handler: CheckpointHandler, value: Any, group: ProcessGroup) -> dict[str, Any]:
    """Return the files that a handler saves on all processes, as arrays of bytes by their paths."""
    rendezvous = group.rendezvous("save the files of a handler for")
    with announce_errors(rendezvous):
        files = files_in_scratch(lambda folder: _save(handler, Path(folder), value))
    if rendezvous.count > 1:
        texts = {path: b64encode(data).decode() for path, data in files.items()}
        with rendezvous:
            texts = rendezvous.exchange(texts, _join_files)
        files = {path: b64decode(text) for path, text in texts.items()}
    return {path: np.frombuffer(data, np.uint8) for path, data in files.items()}


def _join_files(files_of_processes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the files of all processes; of those with one path, that of the first process."""
    joined: dict[str, str] = {}
    for files in reversed(files_of_processes):
        joined.update(files)
    return dict(sorted(joined.items()))


def _save(handler: CheckpointHandler, folder: Path, value: Any) -> None:
    handler.save(folder, args=value)
    finalize = getattr(handler, "finalize", None)
    if callable(finalize):
        finalize(folder)


def _require_standard(tree: Any) -> None:
    if tree is None:
        raise ValueError("StandardSave: expected a tree to save, found None")
    if isinstance(tree, bool | int | float | complex) or hasattr(tree, "__array__"):
        raise ValueError(
            "StandardSave: expected a tree, found a single array or number: use ArraySave for it"
        )


def _cast(tree: Any, save_args: Any) -> Any:
    """Return a tree with the dtypes of a tree of `SaveArgs`, which may lack parts of it."""
    if save_args is None:
        return tree
    import jax

    def cast(leaf: Any, save_arg: Any) -> Any:
        dtype = getattr(save_arg, "dtype", None)
        if dtype is None:
            return leaf
        return leaf.astype(dtype) if hasattr(leaf, "astype") else np.asarray(leaf, dtype).item()

    structure: Any = jax.tree.structure(tree)
    flat = structure.flatten_up_to(save_args)
    return structure.unflatten(map(cast, structure.flatten_up_to(tree), flat))


def refuse_custom_metadata(custom_metadata: object) -> None:
    """Raise TypeError for Orbax's argument `custom_metadata`, unless it is None."""
    if custom_metadata is not None:
        raise TypeError(
            "custom_metadata= is not taken: save it as an item, "
            "args.Composite(state=..., meta=args.JsonSave(custom_metadata))"
        )
