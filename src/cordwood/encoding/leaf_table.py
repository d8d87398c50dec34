"""The leaf table of a file, which holds what its tensors do not.

It is the value of `cordwood.structure`, a JSON object of five members; docs/format.md describes
them:

    nodes   the containers, in the JSON form of cordwood.encoding.json_structure
    types   each distinct way to store a leaf
    leaves  [type, count, type, count, ...]: the types of the leaves in order, run by run
    names   [leaf, name, leaf, name, ...]: tensor names other than the dotted key path
    values  Python values, in leaf order
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.json_structure import structure_from_json, structure_to_json
from cordwood.encoding.json_values import VALUE_KINDS, decode_value
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.index import ARRAY_KINDS, LEAF, LeafKind, Structure

BYTE_KINDS: frozenset[LeafKind] = frozenset({"str", "bytes"})  # as tensors when long

_MEMBERS = ("nodes", "types", "leaves", "names", "values")
_TYPE_MEMBERS = {"kind", "tensor", "dtype", "weak_type", "prng_impl"}


class LeafType(NamedTuple):
    """The type of a leaf, as far as its tensor does not hold it."""

    kind: LeafKind
    tensor: bool  # stored as a tensor, not as a value
    dtype: str = ""  # set if the tensor is U8 because the format lacks the dtype
    weak_type: bool = False
    prng_impl: str | None = None


class LeafTable(NamedTuple):
    """The decoded members, checked against one another."""

    structure: Structure
    types: tuple[LeafType, ...]
    runs: tuple[tuple[int, int], ...]  # of leaves: position in `types`, count
    names: dict[int, str]  # by leaf
    values: list[Any]  # decoded

    def leaf_types(self) -> Iterator[LeafType]:
        """Return the type of each leaf."""
        return chain.from_iterable(repeat(self.types[number], count) for number, count in self.runs)


def encode_table(
    structure: Structure,
    types: Iterable[LeafType],
    leaf_types: Iterable[int],
    names: Iterable[tuple[int, str]],
    values: Iterable[Any],
) -> str:
    """Return the JSON text. `values` are already in their JSON form."""
    table = {
        "nodes": structure_to_json(structure),
        "types": [type_to_json(kind) for kind in types],
        "leaves": encode_runs(leaf_types),
        "names": [part for pair in names for part in pair],
        "values": list(values),
    }
    return json.dumps(table, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_runs(numbers: Iterable[int]) -> list[int]:
    """Return the run lengths of numbers: [number, count, number, count, ...]."""
    return [part for number, run in groupby(numbers) for part in (number, len(list(run)))]


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


def parse_table(text: str, *, tensor_count: int) -> LeafTable:
    """Parse and check the JSON text of a file that holds `tensor_count` tensors.

    Raises:
        FormatError: the text is invalid; the message names the member and the item. LimitError,
            a subclass, if a limit is passed.
    """
    table = parse_json(text, "cordwood.structure")
    if type(table) is not dict or set(table) != set(_MEMBERS):
        raise FormatError(f"cordwood.structure: expected an object of {', '.join(_MEMBERS)}")
    for member in _MEMBERS:
        if type(table[member]) is not list:
            raise FormatError(f"cordwood.structure: {member}: expected a list")
    types = tuple(
        [
            type_from_json(item, where=f"cordwood.structure: types[{i}]")
            for i, item in enumerate(table["types"])
        ]
    )
    # Every leaf is a tensor or a value of this file: so a small file cannot claim many leaves.
    max_leaves = tensor_count + len(table["values"])
    structure = structure_from_json(table["nodes"], max_leaves=max_leaves)
    count = structure.count(LEAF)
    runs = parse_runs(table["leaves"], len(types), count, where="cordwood.structure: leaves")
    stored = sum(length for number, length in runs if types[number].tensor)
    if stored != tensor_count or count - stored != len(table["values"]):
        raise FormatError(
            f"cordwood.structure: leaves: expected {tensor_count} tensors and "
            f"{len(table['values'])} values, found {stored} and {count - stored}"
        )
    names = _names(table["names"], count)
    kinds = [(types[number], length) for number, length in runs]
    values = parse_values(table["values"], kinds, where="cordwood.structure: values")
    return LeafTable(structure, types, runs, names, values)


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


def _names(items: list[Any], count: int) -> dict[int, str]:
    where = "cordwood.structure: names"
    if len(items) % 2:
        raise FormatError(f"{where}: expected pairs of leaf and name")
    names: dict[int, str] = {}
    for leaf, name in zip(items[::2], items[1::2], strict=True):
        if type(leaf) is not int or not 0 <= leaf < count or leaf in names:
            raise FormatError(f"{where}: expected leaves below {count}, each once, found {leaf!r}")
        if type(name) is not str:
            raise FormatError(f"{where}: expected a name for leaf {leaf}, found {name!r:.80}")
        names[leaf] = name
    return names


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
