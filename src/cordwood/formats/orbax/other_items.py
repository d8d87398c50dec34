"""The items of a checkpoint of Orbax that are not trees: JSON, random keys, states of iterators.

<step>/<item>/metadata                      JsonSave: a file of JSON
<step>/metrics/metrics                      CheckpointManager: the metrics, as JSON
<step>/<item>/jax_random_key/               JaxRandomKeySave: an array, and beside it
<step>/<item>/jax_random_key_metadata/metadata      {"typed": true} for a typed key
<step>/<item>/np_random_key/                NumpyRandomKeySave: a tree
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cordwood.errors import CorruptionError, FormatError, LimitError
from cordwood.formats.orbax.grain_states import FILE_PATTERN, has_states
from cordwood.formats.orbax.json_files import read_json, read_object
from cordwood.formats.orbax.orbax_directory import has_tree, inspect_directory
from cordwood.formats.orbax.readable_entries import sizes_in
from cordwood.formats.orbax.saved_metrics import METRICS_ITEM
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.stored_item import (
    ItemKind,
    IteratorItem,
    JaxKeyItem,
    JsonItem,
    NumpyStateItem,
    StoredItem,
)
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import ReadableDirectory
from cordwood.threads.log import log

_MAX_JSON_BYTES = 1 << 28
JSON_NAME = "metadata"  # the file of an item of JSON; metrics have the name of their item
_JAX_KEY = "jax_random_key"
_NUMPY_STATE = "np_random_key"


def item_kind(directory: ReadableDirectory, item: str) -> ItemKind:
    """Return the kind of an item of a checkpoint, judged by the names of its files."""
    names = sizes_in(directory, item)
    if TREE_NAME in names or has_tree(directory, item):
        return ItemKind.TREE
    if _JAX_KEY in names:
        return ItemKind.JAX_KEY
    if _NUMPY_STATE in names:
        return ItemKind.NUMPY_STATE
    if has_states(names):
        return ItemKind.ITERATOR
    return ItemKind.JSON if JSON_NAME in names or item in names else ItemKind.UNKNOWN


def other_items(location: Location) -> Mapping[str, ItemKind]:
    """Return the kinds of the items that are no trees."""
    with suppress(FileNotFoundError, NotADirectoryError), directory_at(location) as directory:
        return {name: item_kind(directory, name) for name in inspect_directory(directory).others}
    return {}


def read_item(location: Location, name: str, kind: ItemKind) -> StoredItem:
    """Return what an item stores.

    Args:
        location: the checkpoint.
        name: the name of the item.
        kind: its kind, from `other_items`; not UNKNOWN.

    Raises CorruptionError, FormatError and LimitError.
    """
    with directory_at(location) as directory:
        if kind is ItemKind.JSON:
            return JsonItem(_read_json_item(directory, name))
        if kind is ItemKind.JAX_KEY:
            data = location.child(f"{name}/{_JAX_KEY}")
            return JaxKeyItem(data, is_typed=_has_flag(directory, f"{name}/{_JAX_KEY}", "typed"))
        if kind is ItemKind.NUMPY_STATE:
            state = location.child(f"{name}/{_NUMPY_STATE}")
            is_legacy = _has_flag(directory, f"{name}/{_NUMPY_STATE}", "legacy")
            return NumpyStateItem(state, is_legacy=is_legacy)
        return IteratorItem(sorted(directory.sizes(name)), FILE_PATTERN)


def read_extras(location: Location, items: Mapping[str, ItemKind]) -> dict[str, Any] | None:
    """Return the JSON items of a step by their names, without the metrics; None if there are none.

    `items` is what `other_items` returned. An item that cannot be read, whatever its name, is left
    out and logged: the caller did not ask for it, and the tree is complete without it.
    """
    extras = {}
    for name, kind in items.items():
        if kind is ItemKind.JSON and name != METRICS_ITEM:
            try:
                with directory_at(location) as directory:
                    extras[name] = _read_json_item(directory, name)
            except (CorruptionError, FormatError, LimitError) as e:
                log.warning("%s: the item %r is left out of extras: %s", location, name, e)
    return extras or None


def _read_json_item(directory: ReadableDirectory, item: str) -> Any:
    file = JSON_NAME if JSON_NAME in directory.sizes(item) else item
    return read_json(directory, f"{item}/{file}", limit_bytes=_MAX_JSON_BYTES)


def _has_flag(directory: ReadableDirectory, key: str, flag: str) -> bool:
    path = f"{key}_metadata/metadata"
    return bool(read_object(directory, path, limit_bytes=_MAX_JSON_BYTES).get(flag))
