"""The packs that a save writes: their names, and the plan of each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.encoding.tensor_names import tensor_names
from cordwood.formats.packs.file_names import pack_name
from cordwood.formats.packs.packed_tree import PackedTree, stored_names
from cordwood.formats.safetensors.plan_file import plan_file
from cordwood.index import LEAF, Box, LeafSpec, Node
from cordwood.keypath import KeyPath
from cordwood.plan.file_plan import FilePlan, LeafPart
from cordwood.plan.packs import Pack
from cordwood.sharding.boxes import shape_of
from cordwood.storage.storage_protocol import NewDataFile


def new_packs(
    tree: PackedTree,
    packs: Sequence[Pack],
    process: int,
    *,
    save_id: str,
    in_pool: bool = False,
    numbers: Sequence[int] | None = None,
) -> list[NewDataFile]:
    """Return the files that a process writes, or those of some numbers among them.

    Args:
        tree: the tree.
        packs: their contents, from `cordwood.plan.packs`.
        process: the number of the process.
        save_id: 16 hexadecimal digits, of this save alone.
        in_pool: True to write them to the pool of the run.
        numbers: the positions of the packs to plan; None: all.
    """
    names = stored_names(tree)
    return [
        NewDataFile(
            pack_name(save_id, process, n, in_pool=in_pool), _plan_pack(tree, packs[n], names)
        )
        for n in (range(len(packs)) if numbers is None else numbers)
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
    return plan_file(structure, specs, metadata=metadata, parts=parts)


def _suffix(box: Box) -> str:
    ranges = zip(box.start, box.stop, strict=True)
    return f"[{','.join([f'{start}:{stop}' for start, stop in ranges])}]"
