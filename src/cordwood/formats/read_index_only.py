"""The leaves of a local checkpoint from its index alone, without numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.index import Index, LeafRuns
from cordwood.storage.open_files import LocalFile, read_whole
from cordwood.storage.path_kind import is_link, kind_at
from cordwood.storage.urls import local_or_url, parse_url

_PACKS_INDEX, _ZARR_INDEX = "cordwood.json", "tensorstore_index.json"
_RECORD = b"\x92"  # what msgpack begins with that may not be Flax's


class QuickLook(NamedTuple):
    """What an index says of leaves."""

    path: str
    format: str
    leaves: Index | LeafRuns
    metadata: Mapping[str, str]


def quick_look(
    path: str | os.PathLike[str], *, prefix: str | None, format: str | None
) -> QuickLook | None:
    """The leaves of a `.safetensors` or `.msgpack` file, or a directory of packs or zarr arrays.

    None for anything else, and where only opening it tells: what is damaged, for one, or an index
    that is a symbolic link, which is refused there.

    Raises whatever `cordwood.open` does of an index.
    """
    path = local_or_url(path)
    text = os.fspath(path)
    if format is not None or parse_url(path) is not None:
        return None
    if text.endswith((".safetensors", ".msgpack")):
        return _in_a_file(text) if prefix is None and kind_at(text) == "a file" else None
    packs, zarr = [kind_at(f"{text}/{name}") == "a file" for name in (_PACKS_INDEX, _ZARR_INDEX)]
    if packs == zarr or is_link(f"{text}/{_PACKS_INDEX if packs else _ZARR_INDEX}"):
        return None
    return _in_packs(text, prefix) if packs else _in_zarr(text, prefix)


def _in_a_file(path: str) -> QuickLook | None:
    with LocalFile(path) as file:
        if path.endswith(".safetensors"):
            from cordwood.formats.safetensors.read_index import read_index

            index = read_index(file)
        elif file.size_bytes and file.read(0, 1) != _RECORD:
            from cordwood.formats.flax_msgpack.read_index import read_index

            index = read_index(file)
        else:
            return None
    return QuickLook(path, index.format, index, index.metadata)


def _in_packs(path: str, prefix: str | None) -> QuickLook:
    from cordwood.formats.packs.index_file import MAX_INDEX_BYTES, select_item
    from cordwood.formats.packs.list_leaves import list_items

    name = f"{path}/{_PACKS_INDEX}"
    with LocalFile(name) as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    found = select_item(list_items(data, name=name), prefix, name=path)
    return QuickLook(path, "packs", *found)


def _in_zarr(path: str, prefix: str | None) -> QuickLook | None:
    from cordwood.formats.zarr.index_file import MAX_INDEX_BYTES
    from cordwood.formats.zarr.list_leaves import list_item

    with LocalFile(f"{path}/{_ZARR_INDEX}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    found = list_item(data, prefix, name=path)
    return None if found is None else QuickLook(path, "zarr", *found)
