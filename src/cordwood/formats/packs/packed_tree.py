"""A tree whose leaves are assigned to files and processes, before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cordwood.encoding.json_leaf_types import BYTE_KINDS
from cordwood.encoding.tensor_names import tensor_names
from cordwood.formats.packs.grid import Grid
from cordwood.formats.packs.leaf_types import Tensor, tensor_of
from cordwood.index import LeafSpec
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.cells import CellAssignment, FileSizes, ShardedLeaf, assign_cells
from cordwood.sharding.boxes import single_process_grid
from cordwood.tree.flatten import DescribedTree


class PackedTree(NamedTuple):
    """A tree to save, and the process that writes each cell of it.

    Attributes:
        described: the tree, without its leaves.
        tensors: of each leaf; None: the index holds it.
        grids: of each leaf; None as in `tensors`.
        assignment: of the cells to processes.
        prefix: the name of the tree in the directory.
        metadata: the user's strings.
        first_leaf: the position of its first leaf among the leaves of the save.
    """

    described: DescribedTree
    tensors: tuple[Tensor | None, ...]
    grids: tuple[Grid | None, ...]
    assignment: CellAssignment
    prefix: str
    metadata: Mapping[str, str]
    first_leaf: int


def view_cell(tree: PackedTree, leaves: Leaves, leaf: int, cell: int) -> np.ndarray | LazyArray:
    """Return the elements of a cell; `leaves` are those of the save."""
    grid = tree.grids[leaf]
    assert grid is not None
    return leaves.view(tree.first_leaf + leaf, grid.box(cell) if grid.cell_count > 1 else None)


def stored_names(tree: PackedTree) -> dict[int, str]:
    """Return the names of the leaves that are stored as tensors, by the leaves."""
    stored = [leaf for leaf, tensor in enumerate(tree.tensors) if tensor is not None]
    paths = [tree.described.specs[leaf].key_path for leaf in stored]
    return dict(zip(stored, tensor_names(paths).names, strict=True))


def pack_tree(
    tree: DescribedTree,
    *,
    process_count: int,
    sizes: FileSizes,
    prefix: str = "",
    metadata: Mapping[str, str] = MappingProxyType({}),
    first_leaf: int = 0,
) -> PackedTree:
    """Assign the leaves of a tree to files and processes.

    Args:
        tree: the tree. Of a PRNG key array, shape and dtype are those of its key data; of a leaf
            that is no array, the shards may be anything.
        process_count: how many processes take part.
        sizes: how large the files are to be.
        prefix: the name of the tree in the directory.
        metadata: the user's strings; `format` stands in each file too, where some readers want it.
        first_leaf: the position of its first leaf among the leaves of the save.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored.
    """
    tensor_of_type: dict[tuple[Any, ...], Tensor | None] = {}
    tensors = tuple([_tensor_of(spec, tensor_of_type) for spec in tree.specs])
    stored = []
    for leaf, (spec, tensor) in enumerate(zip(tree.specs, tensors, strict=True)):
        if tensor is not None:
            is_array = spec.kind not in BYTE_KINDS
            shards = tree.shards[leaf] if is_array else single_process_grid(tensor.shape)
            stored.append(ShardedLeaf(leaf, tensor.itemsize, shards))
    assignment = assign_cells(stored, process_count=process_count, sizes=sizes)
    grids: list[Grid | None] = [None] * len(tree.specs)
    for group in assignment.groups:
        grid = Grid.of(group.shape, group.cuts)
        for leaf in group.leaves:
            grids[leaf] = grid
    # Leaves are taken when they are written; until then nothing here holds them.
    described = tree._replace(leaves=())
    return PackedTree(described, tensors, tuple(grids), assignment, prefix, metadata, first_leaf)


def _tensor_of(
    spec: LeafSpec, tensor_of_type: dict[tuple[Any, ...], Tensor | None]
) -> Tensor | None:
    """Return `tensor_of(spec)`, computed once for leaves of one kind, shape and dtype."""
    if spec[6] is not None:  # a value
        return tensor_of(spec)
    alike = spec[1:4]  # kind, shape, dtype
    if alike not in tensor_of_type:
        tensor_of_type[alike] = tensor_of(spec)
    return tensor_of_type[alike]
