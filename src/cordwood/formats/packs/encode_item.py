"""The item of a saved tree in JSON form, from the files of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.encoding.json_leaf_types import encode_runs
from cordwood.encoding.json_tree_structure import structure_to_json
from cordwood.encoding.json_values import encode_value
from cordwood.formats.packs.item import GAP
from cordwood.formats.packs.leaf_types import PackedType, to_json, type_of
from cordwood.formats.packs.packed_tree import PackedTree
from cordwood.formats.packs.written_packs import WrittenPack, part_row
from cordwood.plan.packs import packs_of_all


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
    packs_by_process = packs_of_all(tree.assignment)
    for process, (packs, done) in enumerate(zip(packs_by_process, written, strict=True)):
        rows = [parts for *_, parts in done]
        if None in rows or not rows:
            if len(packs) != len(done):
                raise ValueError(f"process {process} wrote {len(done)} files, not {len(packs)}")
            rows = [list(map(part_row, pack.parts)) for pack in packs]
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
