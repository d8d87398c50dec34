"""The leaves of a directory of zarr arrays from its index alone: needs no numpy.

The index does not have the number of chunks of an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from cordwood import dtypes
from cordwood.encoding.leaf_table import LeafType
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.zarr.item_metadata import Item, parse_item
from cordwood.formats.zarr.leaf_type import leaf_form
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    entries_of,
    item_names,
    parse_index,
    select_item,
)
from cordwood.formats.zarr.tree_from_paths import nested_dicts
from cordwood.index import LeafRuns, LeafSpec
from cordwood.keypath import KeyPath
from cordwood.storage.open_files import LocalFile, read_whole
from cordwood.tree.structure import leaf_paths


def list_index(path: str, item: str | None) -> IndexListing | None:
    """Return the leaves of an item of a local directory; None as `list_item`."""
    with LocalFile(f"{path}/{INDEX_NAME}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    return list_item(data, item, name=path)


def list_item(data: bytes, prefix: str | None, *, name: str) -> IndexListing | None:
    """Return an item by the bytes of its index; None if the index does not describe its arrays.

    Args:
        data: the index.
        prefix: the prefix of the item. None: the one saved without, or the only one.
        name: the directory, for errors.

    Raises FormatError, CorruptionError, UnsupportedFormatError and PrefixError, as `read_index`.
    """
    try:
        index = parse_index(data)
        if prefix is None:
            names = item_names(index)
            prefix = names[0] if len(names) == 1 else None
        own_name = select_item(index, prefix)
        entries = entries_of(index, own_name)
        arrays = [(entry.shape, entry.dtype) for entry in entries]
        if not all(shape is not None and _is_known(dtype) for shape, dtype in set(arrays)):
            return None
        if own_name not in index.items:
            _, order, paths = nested_dicts([entry.path for entry in entries], own_name)
            forms: list[_Form] = [(0, *arrays[i]) for i in order]
            return IndexListing(_runs(paths, [LeafType("jax", True)], forms), {})
        item = parse_item(index.items[own_name], array_count=len(entries))
        return IndexListing(_own(item, arrays), item.metadata)
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{name}: {e}") from e


def _is_known(dtype: str | None) -> bool:
    return dtype is not None and dtypes.is_storable(dtype)


_Array: TypeAlias = tuple[tuple[int, ...] | None, str | None]


def _own(item: Item, arrays: Sequence[_Array]) -> LeafRuns:
    table = item.table
    array_of = dict(zip(item.order, arrays, strict=True))
    forms: list[_Form] = []
    for number, length in table.runs:
        start = len(forms)
        if table.types[number].tensor:
            forms += [(number, *array_of[i]) for i in range(start, start + length)]
        else:
            forms += [(number, None, None)] * length
    return _runs(leaf_paths(table.structure), table.types, forms)


# Of a leaf: its type by number, and shape and dtype of its array; None of a value.
_Form: TypeAlias = tuple[int, tuple[int, ...] | None, str | None]


def _runs(paths: Sequence[KeyPath], types: Sequence[LeafType], forms: Sequence[_Form]) -> LeafRuns:
    numbers = {form: position for position, form in enumerate(dict.fromkeys(forms))}
    specs = [_spec(types[number], shape, dtype) for number, shape, dtype in numbers]
    runs = [(numbers[form], 1) for form in forms]
    return LeafRuns(paths, specs, [()] * len(specs), runs)


def _spec(leaf_type: LeafType, shape: tuple[int, ...] | None, dtype: str | None) -> LeafSpec:
    if shape is None or dtype is None:
        return LeafSpec((), leaf_type.kind, (), "")
    form = leaf_form(leaf_type, shape, dtype)
    return LeafSpec(
        (), leaf_type.kind, form.shape, form.dtype, leaf_type.weak_type, leaf_type.prng_impl
    )
