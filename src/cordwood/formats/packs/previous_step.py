"""The files of an older checkpoint, compared with the tree of a new save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.encoding.leaf_table import tensor_names
from cordwood.formats.packs.cordwood_json import PACK_NAME
from cordwood.formats.packs.index_item import Item, cells_of_file
from cordwood.formats.packs.leaf_types import type_of
from cordwood.formats.packs.plan_save import PackedTree
from cordwood.index import Source
from cordwood.plan.choose_hard_links import UNUSED, StoredCell, cells_of_process
from cordwood.tree.structure import leaf_paths


class BaseFile(NamedTuple):
    """A file, and the cells in it that this process would write again if nothing had changed."""

    source: Source
    cells: tuple[StoredCell, ...]  # all of its data; leaves are those of the tree to be saved


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
    cells_to_write = cells_of_process(tree.shares, process)
    files = []
    for number, pack in enumerate(item.packs):
        name = PACK_NAME.fullmatch(pack.source.name)
        if name is None or int(name["process"]) != process:
            continue
        cells = tuple(_cells(item, number, leaves, cells_to_write))
        if any(cell.leaf != UNUSED for cell in cells):
            files.append(BaseFile(pack.source, cells))
    return files


def _same_leaves(item: Item, tree: PackedTree) -> list[int]:
    """Return for each leaf of the item the leaf of the tree that is stored alike, or UNUSED."""
    paths = leaf_paths(item.structure)
    kinds = item.leaf_types.tolist()
    stored = [i for i, kind in enumerate(kinds) if item.types[kind].grid is not None]
    names = tensor_names([paths[i] for i in stored]).names
    stored_leaves = {paths[i]: (name, i) for name, i in zip(names, stored, strict=True)}
    leaves = [UNUSED] * len(kinds)
    ours = [leaf for leaf, tensor in enumerate(tree.tensors) if tensor is not None]
    names = tensor_names([tree.described.specs[leaf].key_path for leaf in ours]).names
    for name, leaf in zip(names, ours, strict=True):
        spec = tree.described.specs[leaf]
        stored_name, i = stored_leaves.get(spec.key_path, ("", -1))
        packed = type_of(spec, tree.tensors[leaf], tree.grids[leaf])
        if i >= 0 and stored_name == name and item.types[kinds[i]] == packed:
            leaves[i] = leaf
    return leaves


def _cells(
    item: Item, number: int, leaves: list[int], cells_to_write: set[tuple[int, int]]
) -> Iterator[StoredCell]:
    """Return all cells of the data of a file, gaps included."""
    source = item.packs[number].source
    assert source.header_digest is not None
    end = source.header_digest.header_bytes
    for leaf, cell, offset, length in cells_of_file(item, number):
        if offset > end:
            yield StoredCell(UNUSED, 0, end, offset - end)
        mine = (leaves[leaf], cell) in cells_to_write
        yield StoredCell(leaves[leaf] if mine else UNUSED, cell, offset, length)
        end = offset + length
    if end < source.size_bytes:
        yield StoredCell(UNUSED, 0, end, source.size_bytes - end)
