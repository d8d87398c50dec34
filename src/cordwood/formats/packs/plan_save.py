"""The plans of files from the assignment of cells, and the index once these are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.encoding.leaf_table import BYTE_KINDS, encode_runs, tensor_names
from cordwood.encoding.strict_json import encode_value
from cordwood.formats.packs.index_item import GAP
from cordwood.formats.packs.leaf_types import Grid, PackedType, Tensor, tensor_of, to_json, type_of
from cordwood.formats.safetensors.plan_save import plan_save
from cordwood.index import Box, HeaderDigest, LeafSpec
from cordwood.keypath import KeyPath
from cordwood.plan.assign_to_processes import CellAssignment, FileSizes, ShardedLeaf, assign_cells
from cordwood.plan.file_plan import FilePlan, LeafPart
from cordwood.plan.group_into_files import Gap, Pack, PackPart, packs_of_all
from cordwood.sharding.boxes import ShardGrid, shape_of, single_process_grid
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.tree.structure import LEAF, Node, Structure, structure_to_json


class Layout(NamedTuple):
    """A tree, and the process that writes each part of it. Equal on every process."""

    structure: Structure
    specs: tuple[LeafSpec, ...]
    tensors: tuple[Tensor | None, ...]  # of each leaf; None: the index holds it
    grids: tuple[Grid | None, ...]
    shares: CellAssignment


class WrittenPack(NamedTuple):
    """A file that was written or linked, as process 0 needs it for the index: JSON values."""

    name: str
    size_bytes: int
    header_bytes: int
    digest: str  # of the header, in hexadecimal digits
    # A part is its cell and the runs of its leaves, a gap its size; None: as `packs_of_all` has it.
    parts: Sequence[Sequence[int] | int] | None


def lay_out(
    structure: Structure,
    specs: Sequence[LeafSpec],
    shards: Sequence[ShardGrid],
    *,
    process_count: int,
    sizes: FileSizes,
) -> Layout:
    """Assign the leaves of a tree to files and processes.

    Args:
        structure: the containers, with one leaf for each of `specs`, in order.
        specs: the leaves. Of a PRNG key array, shape and dtype are those of its key data.
        shards: the shards of each leaf; of a leaf that is no array, anything.
        process_count: how many processes take part.
        sizes: how large the files are to be.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored.
    """
    tensor_of_type: dict[tuple[Any, ...], Tensor | None] = {}
    tensors = tuple([_known_tensor(spec, tensor_of_type) for spec in specs])
    stored = []
    for leaf, (spec, tensor) in enumerate(zip(specs, tensors, strict=True)):
        if tensor is not None:
            spread = single_process_grid(tensor.shape) if spec.kind in BYTE_KINDS else shards[leaf]
            stored.append(ShardedLeaf(leaf, tensor.itemsize, spread))
    shares = assign_cells(stored, process_count=process_count, sizes=sizes)
    grids: list[Grid | None] = [None] * len(specs)
    for group in shares.groups:
        grid = Grid(group.shape, group.cuts)
        for leaf in group.leaves:
            grids[leaf] = grid
    return Layout(structure, tuple(specs), tensors, tuple(grids), shares)


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
    layout: Layout,
    packs: Sequence[Pack],
    process: int,
    *,
    save_id: str,
    format_tag: str,
    first_leaf: int = 0,
) -> list[NewDataFile]:
    """Return the files that a process writes.

    Args:
        layout: what `lay_out` returned.
        packs: their contents, from `cordwood.plan.group_into_files`.
        process: the number of the process.
        save_id: 16 hexadecimal digits, of this save alone.
        format_tag: `format` in the metadata of each file, which some readers ask for.
        first_leaf: the position of the first leaf of the tree among the leaves of the save.
    """
    stored = [leaf for leaf, tensor in enumerate(layout.tensors) if tensor is not None]
    paths = [layout.specs[leaf].key_path for leaf in stored]
    names = dict(zip(stored, tensor_names(paths).names, strict=True))
    return [
        NewDataFile(
            pack_name(save_id, process, n), _plan_pack(layout, pack, names, format_tag, first_leaf)
        )
        for n, pack in enumerate(packs)
    ]


def _plan_pack(
    layout: Layout, pack: Pack, names: Mapping[int, str], format_tag: str, first_leaf: int
) -> FilePlan:
    dtypes = {leaf: tensor.dtype for leaf, tensor in enumerate(layout.tensors) if tensor}
    stored: list[int] = []
    parts: list[LeafPart] = []
    labels: list[KeyPath] = []
    shapes: list[tuple[int, ...]] = []
    for leaves, cell in pack.parts:
        for leaf in leaves:
            grid = layout.grids[leaf]
            assert grid is not None
            stored.append(leaf)
            if grid.cell_count == 1:
                parts.append((first_leaf + leaf, None))
                labels.append((names[leaf],))
                shapes.append(grid.shape)
                continue
            box = grid.box(cell)
            parts.append((first_leaf + leaf, box))
            labels.append((f"{names[leaf]}{_suffix(box)}",))
            shapes.append(shape_of(box))
    keys = tuple(tensor_names(labels).names)  # a leaf may be called like a part of another
    specs = [
        LeafSpec((key,), "numpy", shape, dtypes[leaf])
        for key, leaf, shape in zip(keys, stored, shapes, strict=True)
    ]
    structure = (Node("dict", len(keys), keys), *[LEAF] * len(keys))
    return plan_save(structure, specs, metadata={"format": format_tag}, parts=parts)


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
    layout: Layout,
    written: Sequence[Sequence[WrittenPack]],
    *,
    save_id: str,
    metadata: Mapping[str, str],
) -> dict[str, Any]:
    """Return the item of the index, in JSON form.

    Args:
        layout: what `lay_out` returned.
        written: the files of each process.
        save_id: the id of the save.
        metadata: the user's strings.

    Raises ValueError where the files are not those that the layout asks for.
    """
    numbers: dict[PackedType, int] = {}
    number_of_type: dict[tuple[Any, ...], int] = {}
    leaf_types = []
    values = []
    for spec, tensor, grid in zip(layout.specs, layout.tensors, layout.grids, strict=True):
        alike = (*spec[1:6], id(grid))  # all but the path and the value
        if tensor is None or alike not in number_of_type:
            packed = type_of(spec, tensor, grid)
            number_of_type[alike] = numbers.setdefault(packed, len(numbers))
        leaf_types.append(number_of_type[alike])
        if tensor is None:
            values.append(encode_value(spec.kind, spec.value))
    columns: dict[tuple[int, ...], int] = {}
    files = []
    for process, (packs, done) in enumerate(zip(packs_of_all(layout.shares), written, strict=True)):
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
        "metadata": dict(metadata),
        "nodes": structure_to_json(layout.structure),
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
