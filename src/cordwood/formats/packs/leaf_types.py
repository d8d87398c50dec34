"""The types of leaves in packs: kind, dtype, shape and cuts, and the tensor that holds a leaf.

No header of a data file is read to find a leaf, so the types of leaves are those of a safetensors
file, with shape, dtype and cuts.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.json_leaf_types import BYTE_KINDS, LeafType, type_from_json, type_to_json
from cordwood.encoding.json_values import VALUE_KINDS
from cordwood.errors import FormatError, LimitError
from cordwood.formats.format_losses import unstorable_error
from cordwood.formats.packs.grid import Grid, parse_axis
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.plan_file import INLINE_BYTES, value_bytes
from cordwood.index import MAX_ARRAY_BYTES, MAX_DIMS, LeafSpec


class PackedType(NamedTuple):
    """A way in which leaves are stored. `grid` is None for values."""

    leaf_type: LeafType  # always with its dtype
    itemsize: int
    grid: Grid | None

    @property
    def cells(self) -> int:
        """The number of cells of each leaf of this type."""
        return 0 if self.grid is None else self.grid.cell_count


class Tensor(NamedTuple):
    """The array that holds a leaf in packs."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int


def tensor_of(spec: LeafSpec) -> Tensor | None:
    """Return the array that holds a leaf in packs; None for a small value, which the index holds.

    Raises UnsupportedLeafError for a leaf that cannot be stored.
    """
    if spec.kind in BYTE_KINDS:
        size = value_bytes(spec.value)
        return Tensor((size,), "uint8", 1) if size > INLINE_BYTES else None
    if spec.kind in VALUE_KINDS:
        return None
    if spec.kind == "opaque" or len(spec.shape) >= MAX_DIMS:
        raise unstorable_error(spec, MAX_DIMS, "packs take")
    return Tensor(spec.shape, spec.dtype, stored_dtype(spec.dtype).itemsize)


def type_of(spec: LeafSpec, tensor: Tensor | None, grid: Grid | None) -> PackedType:
    """Return the type of a leaf whose array is cut as `grid` says."""
    if tensor is None:
        return PackedType(LeafType(spec.kind, False), 0, None)
    dtype = spec.dtype if spec.kind in _KINDS_WITH_DTYPE else ""
    leaf_type = LeafType(spec.kind, True, dtype, spec.weak_type, spec.prng_impl)
    return PackedType(leaf_type, tensor.itemsize, grid)


_KINDS_WITH_DTYPE = ("jax", "numpy", "numpy_scalar")  # the others leave no choice
_IMPLIED_DTYPE = {"prng_key": "uint32", "str": "uint8", "bytes": "uint8"}


def dtype_of(leaf_type: LeafType) -> str:
    """Return the dtype of the array that holds a leaf in packs."""
    return leaf_type.dtype or _IMPLIED_DTYPE[leaf_type.kind]


def to_json(packed: PackedType) -> dict[str, Any]:
    """Return the JSON form of a type."""
    item = type_to_json(packed.leaf_type)
    if packed.grid is not None:
        item["shape"] = list(packed.grid.shape)
        if packed.grid.cell_count > 1:
            axes = packed.grid.axes
            item["cuts"] = [axis if isinstance(axis, int) else list(axis) for axis in axes]
    return item


def parse_type(item: Any, *, where: str) -> PackedType:
    """Return the type whose JSON form is `item`. Raises FormatError."""
    if type(item) is not dict:
        raise FormatError(f"{where}: expected an object with a kind, found {item!r:.80}")
    members = {key: value for key, value in item.items() if key not in ("shape", "cuts")}
    leaf_type = type_from_json(members, where=where)
    if not leaf_type.tensor:
        if members != item:
            raise FormatError(f"{where}: a value has neither shape nor cuts: {item!r:.200}")
        return PackedType(leaf_type, 0, None)
    if (leaf_type.kind in _KINDS_WITH_DTYPE) != bool(leaf_type.dtype):
        raise FormatError(
            f"{where}: expected a dtype where the kind leaves one open: {item!r:.200}"
        )
    itemsize = dtypes.itemsize(dtype_of(leaf_type))
    shape = _shape(item.get("shape"), itemsize, where=where)
    fits = {
        "numpy_scalar": not shape,
        "prng_key": bool(shape),
        "str": len(shape) == 1,
        "bytes": len(shape) == 1,
    }
    if not fits.get(leaf_type.kind, True):
        raise FormatError(f"{where}: no {leaf_type.kind} has the shape {list(shape)}")
    cuts = item.get("cuts", [1] * len(shape))
    if type(cuts) is not list or len(cuts) != len(shape):
        raise FormatError(f"{where}: cuts: expected one for each axis of {list(shape)}")
    axes = [
        parse_axis(size, cut, where=f"{where}: cuts[{n}]")
        for n, (size, cut) in enumerate(zip(shape, cuts, strict=True))
    ]
    return PackedType(leaf_type, itemsize, Grid(shape, tuple(axes)))


def _shape(shape: Any, itemsize: int, *, where: str) -> tuple[int, ...]:
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise FormatError(f"{where}: shape: expected integers of 0 or more, found {shape!r:.80}")
    if len(shape) > MAX_DIMS:
        raise LimitError(f"{where}: {len(shape)} dimensions; expected at most {MAX_DIMS}")
    if prod(filter(None, shape)) * itemsize > MAX_ARRAY_BYTES:
        raise FormatError(f"{where}: the shape takes more than {MAX_ARRAY_BYTES} bytes")
    return tuple(shape)
