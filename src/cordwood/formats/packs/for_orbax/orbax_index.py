"""The files by which Orbax reads a directory of packs too, without a second copy of an array.

The metadata of the tree without a prefix has ORBAX_KEY if they are to be there. They follow from
the index, and are written after it. docs/format.md has their layout.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError, UnsupportedLeafError
from cordwood.formats.orbax.checkpoint_metadata import (
    CHECKPOINT_NAME,
    JSON_HANDLER,
    TREE_HANDLER,
    encode_checkpoint_metadata,
)
from cordwood.formats.orbax.other_items import JSON_NAME
from cordwood.formats.orbax.saved_metrics import METRICS_ITEM
from cordwood.formats.orbax.tree_in_place import (
    NAMES,
    encode_tree_in_place,
    require_describable,
)
from cordwood.formats.orbax.unfinished_saves import COMMIT_NAME
from cordwood.formats.packs.cordwood_json import INDEX_NAME
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, is_pack_name
from cordwood.formats.packs.item import Item
from cordwood.formats.packs.packed_tree import PackedTree
from cordwood.formats.packs.read_index import read_index
from cordwood.formats.step_record import ORBAX_KEY, record_in
from cordwood.storage.storage_protocol import LinkTo, Sidecar

EXTRAS_ITEM = "extras"  # the item of extras that are no dict of items
_MAX_NAME_BYTES = 255  # of a directory


class _Layout(NamedTuple):
    """The items of the Orbax checkpoint that a directory is, too.

    Attributes:
        trees: the prefixes of the trees, by their directories; "" is the directory itself.
        values: of items that are no trees, the JSON value, by the paths of their files.
        metrics: the metrics of a manager's step.
        seconds: when the save began, since 1970.
        save_id: of the tree without a prefix.
    """

    trees: Mapping[str, str]
    values: Mapping[str, Any]
    metrics: Mapping[str, float]
    seconds: float
    save_id: str


def orbax_files(items: Mapping[str, Item]) -> dict[str, Sidecar | None]:
    """Return the files by their paths; None for one that is not to be there. Empty: none at all.

    They are written in this order: the file that Orbax takes for a sign of a commit is the last.

    Raises UnsupportedLeafError if Orbax could not read a leaf.
    """
    metadata = {prefix: item.metadata for prefix, item in items.items()}
    layout = _layout(metadata, items[""].save_id if "" in items else "")
    if layout is None:
        return {}
    files: dict[str, Sidecar | None] = {}
    for folder, prefix in layout.trees.items():
        index = read_index(items[prefix])
        encoded = encode_tree_in_place(index)
        files.update({_path(folder, name): encoded.get(name) for name in NAMES})
        if folder:
            names = [source.name for source in index.sources]
            files.update({_path(folder, name): LinkTo(f"../{name}") for name in names})
    return {**files, **_value_files(layout)}


def orbax_paths(items: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of all files that `orbax_files` may have for an index in JSON form.

    The items need not be checked.
    """
    with suppress(CordwoodError, AttributeError, KeyError, TypeError, ValueError):
        layout = _layout(
            {prefix: item["metadata"] for prefix, item in items.items()}, items[""]["save_id"]
        )
        if layout is None:
            return frozenset()
        names = {_path(folder, name) for folder in layout.trees for name in NAMES}
        links = {
            _path(folder, row[0])
            for folder, prefix in layout.trees.items()
            if folder
            for row in items[prefix]["files"]
        }
        return frozenset(names | links | _value_files(layout).keys())
    return frozenset()


def changed_values(items: Mapping[str, Any]) -> dict[str, Sidecar | None]:
    """Return those of the files that depend on the metrics of a step, for an index in JSON form."""
    layout = _layout(
        {prefix: item["metadata"] for prefix, item in items.items()}, items[""]["save_id"]
    )
    return {} if layout is None else {**_value_files(layout)}


def require_orbax(trees: Sequence[PackedTree]) -> None:
    """Raise an error unless trees, of which one asks for it, can be saved so that Orbax reads them.

    Raises:
        UnsupportedLeafError: Orbax could not read a leaf; names it.
        ValueError: the name of an item is no name of a directory.
    """
    require_folders({tree.prefix: tree.metadata for tree in trees})
    for tree in trees:
        structure, specs = tree.described.structure, tree.described.specs
        stored = {
            (spec.kind, grid): spec
            for spec, grid in zip(specs, tree.grids, strict=True)
            if grid is not None
        }
        boxes = [
            (spec, [grid.box(cell) for cell in range(grid.cell_count)])
            for (_, grid), spec in stored.items()
        ]
        try:
            require_describable(structure, specs, boxes)
        except UnsupportedLeafError as e:
            raise UnsupportedLeafError(f"{tree.prefix}: {e}" if tree.prefix else str(e)) from e


def _layout(metadata: Mapping[str, Mapping[str, str]], save_id: str) -> _Layout | None:
    """Return the layout; None if there is to be none.

    Args:
        metadata: of each item, by its prefix.
        save_id: of the item without a prefix; its first digits are the time of the save.
    """
    folder = metadata.get("", {}).get(ORBAX_KEY)
    if folder is None:
        return None
    record = record_in(metadata[""])
    others = {prefix: prefix for prefix in metadata if prefix} if folder else {}
    values: dict[str, Any] = {}
    if record is None:
        return _Layout({folder: "", **others}, values, {}, int(save_id[:8], 16), save_id)
    names = {folder, METRICS_ITEM, *others, *record.items}
    for name, value in _extras_items(record.extras, names).items():
        values[_path(name, JSON_NAME)] = value
    for name, states in record.items.items():
        match states:
            case [{"json": value}]:
                values[_path(name, JSON_NAME)] = value
    if record.metrics:
        values[_path(METRICS_ITEM, METRICS_ITEM)] = record.metrics
    return _Layout({folder: "", **others}, values, record.metrics, record.time, save_id)


def _value_files(layout: _Layout) -> dict[str, bytes]:
    files = {path: json.dumps(value).encode() for path, value in layout.values.items()}
    if [*layout.trees] == [""]:
        about = encode_checkpoint_metadata(TREE_HANDLER, layout.metrics, seconds=layout.seconds)
    else:
        handlers = dict.fromkeys(layout.trees, TREE_HANDLER)
        handlers |= {path.partition("/")[0]: JSON_HANDLER for path in layout.values}
        about = encode_checkpoint_metadata(handlers, layout.metrics, seconds=layout.seconds)
    # The last one. It differs if another save, or another item, makes other files of these.
    commit = f"cordwood has committed save {layout.save_id}: {[*layout.trees]}"
    return {**files, CHECKPOINT_NAME: about, COMMIT_NAME: commit.encode()}


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _extras_items(extras: Any, others: Collection[str]) -> Mapping[str, Any]:
    """Return the items of extras: one for each key of a dict, if the keys can be names of items."""
    if extras is None:
        return {}
    if type(extras) is dict and all(_is_usable(name) and name not in others for name in extras):
        return extras
    return {EXTRAS_ITEM: extras}


def _is_usable(name: str) -> bool:
    """Return True if the item of that name can have a directory."""
    return (
        name not in ("", CHECKPOINT_NAME, COMMIT_NAME, INDEX_NAME, HUGGING_FACE_NAME)
        and not name.startswith(".")
        and not set(name) & {"/", "\0"}
        and len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
        and not is_pack_name(name)
    )


def require_folders(metadata: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ValueError unless each item, of metadata by prefix, can have a directory of its own."""
    layout, item = _layout(metadata, "0" * 16), metadata[""][ORBAX_KEY]
    assert layout is not None
    if not item:
        return
    values = sorted({METRICS_ITEM, *(path.partition("/")[0] for path in layout.values)})
    items = [*values, item, *[prefix for prefix in metadata if prefix]]
    for number, name in enumerate(items):
        if name in items[:number] or not _is_usable(name):
            raise ValueError(
                f"orbax=: Orbax would have an item in a directory {name!r:.100}, which cannot be; "
                "give it another name, or save without orbax="
            )
