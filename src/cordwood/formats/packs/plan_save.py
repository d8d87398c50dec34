"""The plans of files from the assignment of cells, and the index once these are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from cordwood.encoding.leaf_table import BYTE_KINDS, encode_runs, tensor_names
from cordwood.encoding.strict_json import encode_value
from cordwood.formats.packs.index_item import GAP
from cordwood.formats.packs.leaf_types import Grid, PackedType, Tensor, tensor_of, to_json, type_of
from cordwood.formats.safetensors.plan_save import plan_save
from cordwood.formats.save_plan import Snapshot
from cordwood.index import Box, HeaderDigest, LeafSpec
from cordwood.keypath import KeyPath
from cordwood.plan.assign_to_files import (
    CellAssignment,
    FileSizes,
    Gap,
    Pack,
    PackPart,
    ShardedLeaf,
    assign_cells,
    packs_of_all,
)
from cordwood.plan.file_plan import FilePlan, LeafPart
from cordwood.sharding.boxes import shape_of, single_process_grid
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.tree.structure import LEAF, Node, structure_to_json


class PackedTree(NamedTuple):
    """A tree to save, and the process that writes each part of it; before a byte is written."""

    described: Snapshot
    tensors: tuple[Tensor | None, ...]  # of each leaf; None: the index holds it
    grids: tuple[Grid | None, ...]
    shares: CellAssignment
    prefix: str
    metadata: Mapping[str, str]
    first_leaf: int  # the position of its first leaf among the leaves of the save


class WrittenPack(NamedTuple):
    """A file that was written or linked, as process 0 needs it for the index: JSON values."""

    name: str
    size_bytes: int
    header_bytes: int
    digest: str  # of the header, in hexadecimal digits
    # A part is its cell and the runs of its leaves, a gap its size; None: as `packs_of_all` has it.
    parts: Sequence[Sequence[int] | int] | None


def pack_tree(
    tree: Snapshot,
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
    tensors = tuple([_known_tensor(spec, tensor_of_type) for spec in tree.specs])
    stored = []
    for leaf, (spec, tensor) in enumerate(zip(tree.specs, tensors, strict=True)):
        if tensor is not None:
            is_array = spec.kind not in BYTE_KINDS
            shards = tree.shards[leaf] if is_array else single_process_grid(tensor.shape)
            stored.append(ShardedLeaf(leaf, tensor.itemsize, shards))
    shares = assign_cells(stored, process_count=process_count, sizes=sizes)
    grids: list[Grid | None] = [None] * len(tree.specs)
    for group in shares.groups:
        grid = Grid(group.shape, group.cuts)
        for leaf in group.leaves:
            grids[leaf] = grid
    # Leaves are taken when they are written; until then nothing here holds them.
    described = tree._replace(leaves=())
    return PackedTree(described, tensors, tuple(grids), shares, prefix, metadata, first_leaf)


def _known_tensor(
    spec: LeafSpec, tensor_of_type: dict[tuple[Any, ...], Tensor | None]
) -> Tensor | None:
    """Return `tensor_of(spec)`, computed once for leaves of one kind, shape and dtype."""
    if spec[6] is not None:  # a value
        return tensor_of(spec)
    alike = spec[1:4]  # kind, shape, dtype
    if alike not in tensor_of_type:
        tensor_of_type[alike] = tensor_of(spec)
    return tensor_of_type[alike]


def pack_name(save_id: str, process: int, number: int) -> str:
    """Return the name of a data file, which no other save uses."""
    return f"data-{save_id}-{process}-{number}.safetensors"


def own_packs(
    tree: PackedTree, packs: Sequence[Pack], process: int, *, save_id: str
) -> list[NewDataFile]:
    """Return the files that a process writes.

    Args:
        tree: the tree.
        packs: their contents, from `cordwood.plan.assign_to_files`.
        process: the number of the process.
        save_id: 16 hexadecimal digits, of this save alone.
    """
    stored = [leaf for leaf, tensor in enumerate(tree.tensors) if tensor is not None]
    paths = [tree.described.specs[leaf].key_path for leaf in stored]
    names = dict(zip(stored, tensor_names(paths).names, strict=True))
    return [
        NewDataFile(pack_name(save_id, process, n), _plan_pack(tree, pack, names))
        for n, pack in enumerate(packs)
    ]


def _plan_pack(tree: PackedTree, pack: Pack, names: Mapping[int, str]) -> FilePlan:
    dtypes = {leaf: tensor.dtype for leaf, tensor in enumerate(tree.tensors) if tensor}
    stored: list[int] = []
    parts: list[LeafPart] = []
    labels: list[KeyPath] = []
    shapes: list[tuple[int, ...]] = []
    for leaves, cell in pack.parts:
        for leaf in leaves:
            grid = tree.grids[leaf]
            assert grid is not None
            stored.append(leaf)
            if grid.cell_count == 1:
                parts.append((tree.first_leaf + leaf, None))
                labels.append((names[leaf],))
                shapes.append(grid.shape)
                continue
            box = grid.box(cell)
            parts.append((tree.first_leaf + leaf, box))
            labels.append((f"{names[leaf]}{_suffix(box)}",))
            shapes.append(shape_of(box))
    keys = tuple(tensor_names(labels).names)  # a leaf may be called like a part of another
    specs = [
        LeafSpec((key,), "numpy", shape, dtypes[leaf])
        for key, leaf, shape in zip(keys, stored, shapes, strict=True)
    ]
    structure = (Node("dict", len(keys), keys), *[LEAF] * len(keys))
    metadata = {"format": tree.metadata.get("format", "pt")}
    return plan_save(structure, specs, metadata=metadata, parts=parts)


def _suffix(box: Box) -> str:
    ranges = zip(box.start, box.stop, strict=True)
    return f"[{','.join([f'{start}:{stop}' for start, stop in ranges])}]"


def written_pack(
    name: str, size_bytes: int, sealed: HeaderDigest, parts: Sequence[PackPart | Gap] | None
) -> WrittenPack:
    """Return a file that was written or linked; for `parts` see `WrittenPack`."""
    rows = None if parts is None else list(map(_part_row, parts))
    return WrittenPack(name, size_bytes, sealed.header_bytes, sealed.digest.hex(), rows)


def _part_row(part: PackPart | Gap) -> list[int] | int:
    return part.size_bytes if isinstance(part, Gap) else [part.cell, *_spans(part.leaves)]


def encode_item(
    tree: PackedTree, written: Sequence[Sequence[WrittenPack]], *, save_id: str
) -> dict[str, Any]:
    """Return the item of the index, in JSON form.

    Args:
        tree: the tree.
        written: the files of each process.
        save_id: the id of the save.

    Raises ValueError where the files are not those that the tree asks for.
    """
    numbers: dict[PackedType, int] = {}
    number_of_type: dict[tuple[Any, ...], int] = {}
    leaf_types = []
    values = []
    for spec, tensor, grid in zip(tree.described.specs, tree.tensors, tree.grids, strict=True):
        alike = (*spec[1:6], id(grid))  # all but the path and the value
        if tensor is None or alike not in number_of_type:
            packed = type_of(spec, tensor, grid)
            number_of_type[alike] = numbers.setdefault(packed, len(numbers))
        leaf_types.append(number_of_type[alike])
        if tensor is None:
            values.append(encode_value(spec.kind, spec.value))
    columns: dict[tuple[int, ...], int] = {}
    files = []
    for process, (packs, done) in enumerate(zip(packs_of_all(tree.shares), written, strict=True)):
        rows = [parts for *_, parts in done]
        if None in rows or not rows:
            if len(packs) != len(done):
                raise ValueError(f"process {process} wrote {len(done)} files, not {len(packs)}")
            rows = [list(map(_part_row, pack.parts)) for pack in packs]
        for row, (name, size_bytes, header_bytes, digest, _) in zip(rows, done, strict=True):
            parts: list[int] = []
            for part in row or ():
                if isinstance(part, int):
                    parts += (GAP, part)
                else:
                    cell, *spans = part
                    parts += (columns.setdefault(tuple(spans), len(columns)), cell)
            files.append([name, size_bytes, header_bytes, digest, parts])
    return {
        "save_id": save_id,
        "metadata": dict(tree.metadata),
        "nodes": structure_to_json(tree.described.structure),
        "types": [to_json(packed) for packed in numbers],
        "leaves": encode_runs(leaf_types),
        "values": values,
        "columns": list(map(list, columns)),
        "files": files,
    }


def _spans(column: Sequence[int]) -> list[int]:
    """Return the runs of consecutive leaves: [first, count, first, count, ...]."""
    spans: list[int] = []
    end = -1
    for leaf in column:
        if leaf == end:
            spans[-1] += 1
        else:
            spans += (leaf, 1)
        end = leaf + 1
    return spans
