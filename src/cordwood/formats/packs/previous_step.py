"""The files of an older checkpoint, as a save of a like tree sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.encoding.tensor_names import tensor_names
from cordwood.formats.packs.index_item import PACK_NAME, Item
from cordwood.formats.packs.leaf_types import type_of
from cordwood.formats.packs.plan_save import Layout
from cordwood.formats.packs.read_index import cells_of_file
from cordwood.index import Source
from cordwood.plan.deduplicate import UNUSED, StoredCell, cells_of_process
from cordwood.tree.structure import leaf_paths


class BaseFile(NamedTuple):
    """A file, and what of it this process would write again if nothing had changed."""

    source: Source
    cells: tuple[StoredCell, ...]  # all of its data; leaves are those of the tree to be saved


def base_files(item: Item, layout: Layout, process: int) -> list[BaseFile]:
    """The files that a process has written and may link.

    A cell counts as the same where its leaf has the same key path, name, type, shape and cuts, and
    the process is to write that cell again. Whether its bytes are the same is for others to find.

    Args:
        item: of the older checkpoint.
        layout: of the tree to be saved.
        process: which process.
    """
    leaves = _same_leaves(item, layout)
    own = cells_of_process(layout.shares, process)
    found = []
    for number, pack in enumerate(item.packs):
        name = PACK_NAME.fullmatch(pack.source.name)
        if name is None or int(name["process"]) != process:
            continue
        cells = tuple(_cells(item, number, leaves, own))
        if any(cell.leaf != UNUSED for cell in cells):
            found.append(BaseFile(pack.source, cells))
    return found


def _same_leaves(item: Item, layout: Layout) -> list[int]:
    """Of each leaf of the item, the one of the tree that is stored as it is, or NOBODY."""
    paths = leaf_paths(item.structure)
    kinds = item.leaf_types.tolist()
    stored = [i for i, kind in enumerate(kinds) if item.types[kind].grid is not None]
    names = tensor_names([paths[i] for i in stored]).names
    known = {paths[i]: (name, i) for name, i in zip(names, stored, strict=True)}
    leaves = [UNUSED] * len(kinds)
    ours = [leaf for leaf, tensor in enumerate(layout.tensors) if tensor is not None]
    names = tensor_names([layout.specs[leaf].key_path for leaf in ours]).names
    for name, leaf in zip(names, ours, strict=True):
        spec = layout.specs[leaf]
        there, i = known.get(spec.key_path, ("", -1))
        packed = type_of(spec, layout.tensors[leaf], layout.grids[leaf])
        if i >= 0 and there == name and item.types[kinds[i]] == packed:
            leaves[i] = leaf
    return leaves


def _cells(
    item: Item, number: int, leaves: list[int], own: set[tuple[int, int]]
) -> Iterator[StoredCell]:
    """All of the data of a file, gaps included."""
    source = item.packs[number].source
    assert source.header_digest is not None
    end = source.header_digest.header_bytes
    for leaf, cell, offset, length in cells_of_file(item, number):
        if offset > end:
            yield StoredCell(UNUSED, 0, end, offset - end)
        mine = (leaves[leaf], cell) in own
        yield StoredCell(leaves[leaf] if mine else UNUSED, cell, offset, length)
        end = offset + length
    if end < source.size_bytes:
        yield StoredCell(UNUSED, 0, end, source.size_bytes - end)
