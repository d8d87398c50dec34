"""The value of `cordwood.structure`: the leaf table of a file, which holds what its tensors do not.

It is a JSON object of five members; docs/format.md describes them:

    nodes   the containers, in the JSON form of cordwood.encoding.json_tree_structure
    types   each distinct way to store a leaf, in the JSON form of cordwood.encoding.json_leaf_types
    leaves  [type, count, type, count, ...]: the types of the leaves in order, run by run
    names   [leaf, name, leaf, name, ...]: tensor names other than the dotted key path
    values  Python values, in leaf order
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

from cordwood.encoding.json_leaf_types import (
    LeafType,
    encode_runs,
    parse_runs,
    parse_values,
    type_from_json,
    type_to_json,
)
from cordwood.encoding.json_tree_structure import structure_from_json, structure_to_json
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.index import LEAF, Structure

_MEMBERS = ("nodes", "types", "leaves", "names", "values")


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


def encode_structure(
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


def parse_structure(text: str, *, tensor_count: int) -> LeafTable:
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
