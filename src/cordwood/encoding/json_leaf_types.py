"""The types of leaves in JSON: each distinct type once, and runs of leaves of one type."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.json_values import VALUE_KINDS, decode_value
from cordwood.errors import FormatError
from cordwood.index import ARRAY_KINDS, LeafKind

BYTE_KINDS: frozenset[LeafKind] = frozenset({"str", "bytes"})  # as tensors when long

_TYPE_MEMBERS = {"kind", "tensor", "dtype", "weak_type", "prng_impl"}


class LeafType(NamedTuple):
    """The type of a leaf, as far as its tensor does not hold it."""

    kind: LeafKind
    tensor: bool  # stored as a tensor, not as a value
    dtype: str = ""  # set if the tensor is U8 because the format lacks the dtype
    weak_type: bool = False
    prng_impl: str | None = None


def type_to_json(leaf_type: LeafType) -> dict[str, Any]:
    """Return the JSON form, without the members that do not apply."""
    item: dict[str, Any] = {"kind": leaf_type.kind}
    if leaf_type.tensor and leaf_type.kind in BYTE_KINDS:
        item["tensor"] = True
    if leaf_type.dtype:
        item["dtype"] = leaf_type.dtype
    if leaf_type.weak_type:
        item["weak_type"] = True
    if leaf_type.prng_impl is not None:
        item["prng_impl"] = leaf_type.prng_impl
    return item


def type_from_json(item: Any, *, where: str) -> LeafType:
    """Return the leaf type whose JSON form is `item`.

    Raises:
        FormatError: `item` is no such form.
    """
    if type(item) is not dict or not set(item) <= _TYPE_MEMBERS:
        raise FormatError(f"{where}: expected an object with a kind, found {item!r:.80}")
    kind = item.get("kind")
    dtype = item.get("dtype", "")
    impl = item.get("prng_impl")
    in_tensor = item.get("tensor", False)
    weak_type = item.get("weak_type", False)
    if type(kind) is not str or (kind not in ARRAY_KINDS and kind not in VALUE_KINDS):
        raise FormatError(f"{where}: unknown kind of leaf {kind!r:.80}")
    if type(dtype) is not str or (dtype and not dtypes.is_storable(dtype)):
        raise FormatError(f"{where}: unknown dtype {dtype!r:.80}")
    fits = (
        type(in_tensor) is bool
        and type(weak_type) is bool
        and (impl is None or type(impl) is str)
        and (not in_tensor or kind in BYTE_KINDS)
        and (not weak_type or kind == "jax")
        and (impl is not None) == (kind == "prng_key")
        and (not dtype or kind in ("jax", "numpy", "numpy_scalar"))
    )
    if not fits:
        raise FormatError(f"{where}: no leaf can be stored so: {item!r:.200}")
    return LeafType(kind, in_tensor or kind in ARRAY_KINDS, dtype, weak_type, impl)


def encode_runs(numbers: Iterable[int]) -> list[int]:
    """Return the run lengths of numbers: [number, count, number, count, ...]."""
    return [part for number, run in groupby(numbers) for part in (number, len(list(run)))]


def parse_runs(
    items: list[Any], types: int, count: int, *, where: str
) -> tuple[tuple[int, int], ...]:
    """Return the types of `count` leaves as (type, count) pairs.

    Raises:
        FormatError: `items` are not such runs, or not for `count` leaves.
    """
    if len(items) % 2 or not set(map(type, items)) <= {int}:
        raise FormatError(f"{where}: expected pairs of integers")
    runs = tuple(zip(items[::2], items[1::2], strict=True))
    for number, length in runs:
        if not 0 <= number < types or length < 1:
            raise FormatError(f"{where}: no run can be [{number}, {length}]")
    total = sum(length for _, length in runs)
    if total != count:
        raise FormatError(f"{where}: expected types for {count} leaves, found {total}")
    return runs


def parse_values(
    items: list[Any], kinds: Iterable[tuple[LeafType, int]], *, where: str
) -> list[Any]:
    """Return the values of the leaves that are no tensors; `kinds` are runs of leaf types.

    There must be an item for each such leaf.

    Raises:
        FormatError: a value is not of its kind.
    """
    values: list[Any] = []
    for leaf_type, length in kinds:
        if leaf_type.tensor:
            continue
        for _ in range(length):
            try:
                values.append(decode_value(leaf_type.kind, items[len(values)]))
            except FormatError as e:
                raise FormatError(f"{where}[{len(values)}]: {e}") from e
    return values
