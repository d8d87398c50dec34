"""The files of an older step that a process may share, and the cells in them that it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import CordwoodError
from cordwood.formats.packs.file_names import PACK_NAME
from cordwood.formats.packs.item import Item, cells_of_file
from cordwood.formats.packs.leaf_types import type_of
from cordwood.formats.packs.packed_tree import PackedTree, stored_names
from cordwood.formats.packs.parse_item import parse_items
from cordwood.index import Source, leaf_paths
from cordwood.plan.cells import cells_of_process
from cordwood.plan.links import StoredCell
from cordwood.storage.storage_protocol import Storage


class BaseFile(NamedTuple):
    """A file, and the cells in it that this process would write again if nothing had changed."""

    source: Source
    cells: tuple[StoredCell, ...]  # all of its data; leaves are those of the tree to be saved


def read_item(store: Storage, prefix: str) -> Item | None:
    """Return an item of a checkpoint; None if it has just been deleted, or cannot be read."""
    with suppress(CordwoodError, OSError):
        data = store.read_index()
        if data is not None:
            return parse_items(data, name=store.name).get(prefix)
    return None


def base_files(item: Item, tree: PackedTree, process: int) -> list[BaseFile]:
    """Return the files that a process wrote and may link.

    A cell counts as the same where its leaf has the same key path, name, type, shape and cuts, and
    the process is to write that cell again. Its bytes are not compared here.

    Args:
        item: the item of the older checkpoint.
        tree: the tree to be saved.
        process: the number of the process.
    """
    leaves = _same_leaves(item, tree)
    cells_to_write = cells_of_process(tree.assignment, process)
    files = []
    for number, pack in enumerate(item.packs):
        name = PACK_NAME.fullmatch(pack.source.name)
        if name is None or int(name["process"]) != process:
            continue
        cells = tuple(_cells(item, number, leaves, cells_to_write))
        if any(cell.leaf is not None for cell in cells):
            files.append(BaseFile(pack.source, cells))
    return files


def _same_leaves(item: Item, tree: PackedTree) -> list[int | None]:
    """Return for each leaf of the item the leaf of the tree that is stored alike, or None."""
    paths = leaf_paths(item.structure)
    kinds = item.leaf_types.tolist()
    stored = [i for i, kind in enumerate(kinds) if item.types[kind].grid is not None]
    names = tensor_names([paths[i] for i in stored]).names
    stored_leaves = {paths[i]: (name, i) for name, i in zip(names, stored, strict=True)}
    leaves: list[int | None] = [None] * len(kinds)
    for leaf, name in stored_names(tree).items():
        spec = tree.described.specs[leaf]
        stored_leaf = stored_leaves.get(spec.key_path)
        if stored_leaf is None:
            continue
        stored_name, i = stored_leaf
        packed = type_of(spec, tree.tensors[leaf], tree.grids[leaf])
        if stored_name == name and item.types[kinds[i]] == packed:
            leaves[i] = leaf
    return leaves


def _cells(
    item: Item, number: int, leaves: list[int | None], cells_to_write: set[tuple[int, int]]
) -> Iterator[StoredCell]:
    """Yield all cells of the data of a file, gaps included."""
    for stored_leaf, cell, offset, length in cells_of_file(item, number):
        leaf = None if stored_leaf is None else leaves[stored_leaf]
        is_to_write = (leaf, cell) in cells_to_write
        yield StoredCell(leaf if is_to_write else None, cell, offset, length)
