"""Arrays of arranged leaves: parts that are not read in place, zeros, arithmetic, copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cordwood import dtypes
from cordwood.errors import LossError, MismatchError
from cordwood.index import Arithmetic, Arranged, Box, Inline, Leaf
from cordwood.keypath import path_label
from cordwood.plan.arrangements import (
    dtype_as_stored,
    is_read_in_place,
    padding_destinations,
    part_destinations,
)
from cordwood.plan.load_plan import BoxDestination
from cordwood.sharding.boxes import shape_of, slices, whole_box
from cordwood.tree.leaves import whole_array

_BLOCK_ELEMENTS = 1 << 20  # that are converted at a time


def fill_arrays(
    leaf: Leaf,
    boxes: Sequence[Box],
    arrays: Sequence[np.ndarray],
    sources: Mapping[int, np.ndarray],
) -> None:
    """Fill what a load plan leaves out of boxes of an arranged leaf.

    Args:
        leaf: the arranged leaf.
        boxes: boxes of it.
        arrays: the array of each, of the stored dtype.
        sources: the elements of leaves that are not read in place, by the identity of the leaf.
    """
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    item = dtypes.itemsize(dtype_as_stored(leaf))
    for destination in padding_destinations(leaf, boxes, item):
        _place(destination, arrays)[...] = np.zeros((), arrays[destination.buffer].dtype)
    if all(is_read_in_place(part.leaf) for part in storage.parts):
        return
    for part, some in zip(storage.parts, part_destinations(leaf, boxes, item), strict=True):
        if not is_read_in_place(part.leaf):
            array = sources[id(part.leaf)].reshape(part.shape)
            for destination in some:
                _place(destination, arrays)[...] = array[slices(destination.box)]


def arranged_array(leaf: Leaf) -> np.ndarray:
    """Return an arranged leaf of leaves that are in memory, each stored inline."""
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    sources = {}
    for part in storage.parts:
        assert isinstance(part.leaf.storage, Inline)
        sources[id(part.leaf)] = whole_array(part.leaf.storage.value)
    array = np.empty(leaf.shape, dtypes.to_numpy(dtype_as_stored(leaf)))
    fill_arrays(leaf, [whole_box(leaf.shape)], [array], sources)
    return apply_arithmetic(array, leaf)


def _place(destination: BoxDestination, arrays: Sequence[np.ndarray]) -> np.ndarray:
    box, number, position, steps = destination
    array = arrays[number]
    return np.ndarray(shape_of(box), array.dtype, array, position, steps)


def as_view(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    """Return an arranged leaf as a view of the array of `source_of_view`."""
    assert isinstance(leaf.storage, Arranged)
    (part,) = leaf.storage.parts
    cut = Box(
        part.start,
        tuple(
            [
                low + (1 if axis < 0 else part.box.stop[axis])
                for low, axis in zip(part.start, part.axes, strict=True)
            ]
        ),
    )
    view = array.reshape(part.shape)[slices(cut)]
    order = [axis for axis, to in sorted(enumerate(part.axes), key=lambda each: each[1]) if to >= 0]
    fixed = tuple([0 if axis < 0 else slice(None) for axis in part.axes])
    kept = [axis for axis, to in enumerate(part.axes) if to >= 0]
    view = view[fixed].transpose([kept.index(axis) for axis in order])
    result: np.ndarray = view.reshape(leaf.shape)
    return result


def apply_arithmetic(array: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Return the elements of an arranged leaf after its arithmetic, in the dtype of the leaf.

    Raises LossError if elements would not come back from the inverse, unless that is accepted.
    """
    storage = leaf.storage
    if not isinstance(storage, Arranged) or storage.arithmetic is None:
        return array
    result, lost = _converted(array, storage.arithmetic, dtypes.to_numpy(leaf.dtype))
    if lost:
        exact = next(
            (
                f'recipe.replace(store_dtype="{name}") stores them exactly, '
                for name in ("float32", "float64")
                if not _converted(array, storage.arithmetic, dtypes.to_numpy(name))[1]
            ),
            "",
        )
        arithmetic = storage.arithmetic
        raise LossError(
            f"{path_label(leaf.key_path)}: of {array.size} elements of {dtype_as_stored(leaf)}, "
            f"{lost} ({100 * lost / array.size:.1f} %) would not come back: they are multiplied "
            f"by {arithmetic.scale:g}, then {arithmetic.add:g} is added, and the result is rounded "
            f"to {leaf.dtype}. {exact}recipe.replace(lossy=True) accepts the loss"
        )
    return result


def _converted(
    array: np.ndarray, arithmetic: Arithmetic, dtype: np.dtype
) -> tuple[np.ndarray, int]:
    """Return the elements after the arithmetic, and how many would not come back."""
    result = np.empty(array.shape, dtype)
    elements, results = array.reshape(-1), result.reshape(-1)
    lost = 0
    for start in range(0, elements.size, _BLOCK_ELEMENTS):
        block = elements[start : start + _BLOCK_ELEMENTS]
        converted = results[start : start + _BLOCK_ELEMENTS]
        converted[...] = _computed(block, arithmetic, dtype)
        if not arithmetic.lossy:
            inverse = arithmetic._replace(inverse=not arithmetic.inverse)
            back = _computed(converted, inverse, block.dtype)
            lost += int(np.count_nonzero((back != block) & ((back == back) | (block == block))))
    return result, lost


def _computed(block: np.ndarray, arithmetic: Arithmetic, dtype: np.dtype) -> np.ndarray:
    scale, add = _constants(arithmetic, dtype)
    wide = block.astype(np.float64)
    with np.errstate(all="ignore"):
        return ((wide - add) / scale if arithmetic.inverse else wide * scale + add).astype(dtype)


def _constants(arithmetic: Arithmetic, dtype: np.dtype) -> tuple[float, float]:
    """Return the numbers as float32, unless elements are float64, as models compute with them."""
    if dtype == np.float64:
        return arithmetic.scale, arithmetic.add
    return float(np.float32(arithmetic.scale)), float(np.float32(arithmetic.add))


def dropped_leaf(padding: Arranged) -> Leaf:
    """Return padding that a recipe leaves out as a leaf of its own."""
    (part,) = padding.parts
    return part.leaf._replace(kind="numpy", shape=padding.shape, storage=padding)


def require_zeros(leaf: Leaf, padding: Arranged, array: np.ndarray) -> None:
    """Raise LossError unless padding that a recipe leaves out is zeros, or what it adds to them."""
    assert isinstance(leaf.storage, Arranged)
    arithmetic = leaf.storage.arithmetic
    is_lost = array != 0
    if arithmetic is not None:
        is_lost &= array != np.asarray(arithmetic.add).astype(array.dtype)
    lost = int(np.count_nonzero(is_lost))
    if lost:
        raise LossError(
            f"{path_label(leaf.key_path)}: of {array.size} elements of padding in "
            f"{path_label(padding.parts[0].leaf.key_path)}, which the recipe leaves out, {lost} "
            f"({100 * lost / array.size:.1f} %) are not zero. recipe.replace(lossy=True) accepts "
            "the loss"
        )


def require_equal(leaf: Leaf, arrays: Sequence[np.ndarray], copies: Sequence[np.ndarray]) -> None:
    """Raise MismatchError unless arrays that a recipe joins into one are equal, bit for bit."""
    for array, copy in zip(arrays, copies, strict=True):
        one, other = (
            np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (array, copy)
        )
        if not np.array_equal(one, other):
            storage = leaf.storage
            assert isinstance(storage, Arranged)
            names = {
                path_label(part.leaf.key_path)
                for each in (storage, *storage.copies)
                for part in each.parts
            }
            raise MismatchError(
                f"{path_label(leaf.key_path)} is made of arrays that the recipe expects to be "
                f"equal, and they are not: {', '.join(sorted(names))}; they are not tied, so that "
                "the recipe needs a name for each"
            )
