"""`model.safetensors.index.json`: the index for tools that read the layout of the Hugging Face hub.

It is written beside `cordwood.json`, after it, and follows from it. A save that is killed between
the two leaves the one of the save before, which is stale, but names files that are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from json.encoder import encode_basestring as _quoted
from typing import Any, Literal

from cordwood.encoding.strict_json import parse_json
from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import CordwoodError, FormatError
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, is_pack_name
from cordwood.formats.packs.item import Item
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.version_record import BESIDE, version_in
from cordwood.index import leaf_paths
from cordwood.storage.storage_protocol import Storage


def hugging_face_index(items: Mapping[str, Item]) -> bytes | None:
    """Return the index that names the file of each tensor; None if it could not describe all.

    It could not if a leaf is cut into several tensors, if leaves of two items have one name, if
    files hold tensors that belong to no leaf or lie elsewhere, or if there are no arrays. Deltas
    are left out: other tools have no use for them.
    """
    weight_map: dict[str, str] = {}
    total = count = 0
    for item in _trees(items):
        if any(packed.grid is not None and packed.grid.cell_count > 1 for packed in item.types):
            return None
        if any(pack.has_gaps or "/" in pack.source.name for pack in item.packs):
            return None
        files = {}
        for pack in item.packs:
            total += pack.source.size_bytes - pack.header_bytes
            for column, _ in pack.parts:
                files.update(dict.fromkeys(item.columns[column].tolist(), pack.source.name))
        paths = leaf_paths(item.structure)
        leaves = sorted(files)
        names = tensor_names([paths[leaf] for leaf in leaves]).names
        weight_map.update({name: files[leaf] for name, leaf in zip(names, leaves, strict=True)})
        count += len(leaves)
    if not weight_map or len(weight_map) != count:
        return None
    return _encode(weight_map, total)


def _trees(items: Mapping[str, Item]) -> list[Item]:
    """Return the items that are no deltas."""
    record = None
    if "" in items:
        with suppress(CordwoodError):
            record = version_in(items[""].metadata, "")
    delta = None if record is None else BESIDE if record.is_whole else ""
    return [item for name, item in items.items() if name != delta]


def _encode(weight_map: Mapping[str, str], total_bytes: int) -> bytes:
    # As json.dumps would with an indent, in a tenth of the time.
    lines = [f"    {_quoted(name)}: {_quoted(file)}" for name, file in weight_map.items()]
    head = f'{{\n  "metadata": {{\n    "total_size": {total_bytes}\n  }},\n  "weight_map": {{\n'
    return "".join([head, ",\n".join(lines), "\n  }\n}\n"]).encode()


def sidecars_of(index: bytes, *, name: str) -> dict[str, bytes | None]:
    """Return the files beside an index that follow from it; None for one that is not to be there.

    Raises as `parse_items` does, with `name`, the directory.
    """
    return {HUGGING_FACE_NAME: hugging_face_index(parse_items(index, name=name))}


def hub_index_state(
    store: Storage, items: Mapping[str, Item]
) -> Literal["current", "stale", "damaged"]:
    """Return the state of the index for other tools. If there is none, it counts as current.

    It is stale if an earlier save has written it, and all files that it names are still there.
    """
    fitting = (None, hugging_face_index(items))

    def is_current() -> bool:
        return store.read_sidecar(HUGGING_FACE_NAME) in fitting

    if not is_current():
        store.wait_for_commit(is_current)  # it is replaced right after the index
    stored = store.read_sidecar(HUGGING_FACE_NAME)
    if stored is None or stored in fitting:
        return "current"
    for prefix in items:  # an item that is new, beside those that were there
        others = {each: item for each, item in items.items() if each != prefix}
        if stored == hugging_face_index(others):
            return "stale"
    files = _files_of(stored)
    current = {pack.source.name for item in items.values() for pack in item.packs}
    is_whole = files <= {*store.names()} and not files <= current
    return "stale" if files and is_whole else "damaged"


def _files_of(stored: bytes) -> set[str]:
    """Return the data files that an index of cordwood's names; none for anything else."""
    try:
        match parse_json(stored, HUGGING_FACE_NAME):
            case {"metadata": {"total_size": int(total)}, "weight_map": dict(weight_map)}:
                files: set[Any] = {*weight_map.values()}
                if all(type(file) is str and is_pack_name(file) for file in files):
                    return files if _encode(weight_map, total) == stored else set()
    except (FormatError, TypeError):  # a file is a list, say
        pass
    return set()
