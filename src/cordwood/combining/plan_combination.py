"""The plan of a combination: the type of each leaf of the result, and the tiles to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.combining.weighted_sum import Accumulate, total_dtype
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Index, Leaf, LeafSpec
from cordwood.keypath import path_label
from cordwood.loading.cast import requested_dtypes
from cordwood.loading.leaf_reader import is_packed
from cordwood.message_text import first_lines
from cordwood.plan.split_arrays import Part, all_boxes, chunks_of, group_parts
from cordwood.sharding.boxes import element_count
from cordwood.tiles.tiled_checkpoint import Tile

_TILE_BYTES = 4 << 20  # that are read of a checkpoint, or returned
_MAX_SHOWN = 10


class CombinationPlan(NamedTuple):
    """The plan of a combination.

    Attributes:
        dtypes: of each leaf of the result; "" for a value that is no array.
        totals: the dtype of the total of each leaf; "" for a leaf that is not added up.
        tiles: the boxes that are computed together.
    """

    dtypes: Sequence[str]
    totals: Sequence[str]
    tiles: Sequence[Tile]

    @property
    def copied(self) -> list[int]:
        """The numbers of the leaves that are taken from one checkpoint."""
        return [number for number, dtype in enumerate(self.totals) if not dtype]


def plan_combination(
    index: Index,
    operands: Sequence[Sequence[Leaf]],
    *,
    cast: Any,
    accumulate: Accumulate,
    where: str,
    tile_bytes: int = _TILE_BYTES,
) -> CombinationPlan:
    """Return the plan of a combination.

    Args:
        index: the first checkpoint.
        operands: the leaves of all checkpoints, in the order of those of the first.
        cast: dtypes of the result, as in `load`.
        accumulate: the least precision of the totals.
        where: the name of the combination, for errors.
        tile_bytes: the most bytes of an operand, and of the result, in a tile, unless a chunk has
            more.

    Raises:
        MismatchError: leaves of one name have several dtypes, and `cast` names none; or `cast`
            does not fit.
    """
    leaves = index.leaves
    requested: Sequence[str | None] = [None] * len(leaves)
    if cast is not None:
        paths = [leaf.key_path for leaf in leaves]
        requested = requested_dtypes(leaves, paths, cast, naming=index.naming, where=where)
    names, totals, problems = [], [], []
    for number, some in enumerate(zip(*operands, strict=True)):
        stored = list(dict.fromkeys([leaf.dtype for leaf in some]))
        name = requested[number] or stored[0]
        if len(stored) > 1 and (requested[number] is None or not is_added(some[0])):
            problems.append(f"{path_label(some[0].key_path)}: {', '.join(stored)}")
        names.append(name)
        totals.append(total_dtype([*stored, name], accumulate) if is_added(some[0]) else "")
    if problems:
        raise MismatchError(
            f"{where}: leaves have several dtypes; cast= (--cast) says which one the result has, "
            "for floating-point arrays\n" + first_lines(problems, _MAX_SHOWN)
        )
    parts = [
        part
        for number, some in enumerate(zip(*operands, strict=True))
        if some[0].kind in ARRAY_KINDS
        for part in _parts(number, some, names[number], tile_bytes)
    ]
    tiles = [
        [(part.number, part.box) for part in group] for group in group_parts(parts, tile_bytes)
    ]
    return CombinationPlan(names, totals, tiles)


def is_added(leaf: Leaf) -> bool:
    """Return True for an array of floating-point or complex numbers."""
    is_number = dtypes.is_floating(leaf.dtype) or leaf.dtype.startswith("complex")
    return leaf.kind in ARRAY_KINDS and leaf.kind != "prng_key" and is_number


def _parts(number: int, leaves: Sequence[Leaf], dtype: str, tile_bytes: int) -> list[Part]:
    """Return a leaf of the result in parts, which chunks of the operands do not cross.

    Their size is that of the largest operand, or of the result. Totals of a few bits each are
    larger: with smaller parts, most of what is read would be blocks of digests at their borders.
    """
    shape = leaves[0].shape
    item = max(map(dtypes.itemsize, {dtype, *(leaf.dtype for leaf in leaves)}))
    chunks = shape if any(map(is_packed, leaves)) else chunks_of(*leaves)
    boxes = all_boxes(shape, item_bytes=item, limit_bytes=tile_bytes, chunk_shape=chunks)
    return [Part(number, box, element_count(box) * item) for box in boxes]


def result_specs(
    leaves: Sequence[Leaf], names: Sequence[str], values: Mapping[int, Any]
) -> list[LeafSpec]:
    """Return the types of the leaves of the result.

    Args:
        leaves: those of the first checkpoint.
        names: the dtypes of the result.
        values: of leaves that are no arrays.
    """
    return [
        LeafSpec(
            *leaf[:3],
            dtype=name,
            weak_type=leaf.weak_type and name == leaf.dtype,
            prng_impl=leaf.prng_impl,
            value=values.get(number),
        )
        for number, (leaf, name) in enumerate(zip(leaves, names, strict=True))
    ]
