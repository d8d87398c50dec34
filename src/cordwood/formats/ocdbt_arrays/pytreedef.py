"""`pytreedef.json` of jax.experimental.array_serialization: the structure of a tree.

The structure is a FlatBuffer (https://flatbuffers.dev/internals) in base64, of one table a node:

    table PyTreeDef { kind: byte; children: [PyTreeDef]; children_names: [string];
                      custom_name: string; custom_auxdata: [byte]; }
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from contextlib import suppress
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError
from cordwood.index import LEAF, MAX_DEPTH, Node

TREE_NAME = "pytreedef.json"
MAX_TREE_BYTES = 1 << 28
_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)
_KIND, _CHILDREN, _NAMES, _TYPE_NAME, _AUXDATA = range(5)  # the fields of a node
_ARRAY = re.compile(r"Array\(([A-Za-z0-9_]+)\[([0-9, ]*)\]\)")


class ArrayType(NamedTuple):
    """The type of an array, as the file says it."""

    dtype: str
    shape: tuple[int, ...]


class TreeFile(NamedTuple):
    """The checked contents of the file.

    Attributes:
        structure: the nodes in pre-order; None among the leaves is a node without a leaf.
        arrays: by the number of the leaf, counting None, in the order of the structure.
    """

    structure: tuple[Node, ...]
    arrays: dict[int, ArrayType]


def parse_tree_file(data: bytes) -> TreeFile:
    """Parse and check the file. Raises FormatError and LimitError, which begin with its name."""
    members = parse_json(data, TREE_NAME)
    text = members.get("__jax_pytreedef_repr") if type(members) is dict else None
    descriptions = members.get("__jax_leaf_ids") if type(members) is dict else None
    if type(text) is not str or type(descriptions) is not list:
        raise FormatError(
            f"{TREE_NAME}: expected an object with __jax_pytreedef_repr and __jax_leaf_ids"
        )
    try:
        nodes = _Tables(base64.b64decode(text, validate=True)).nodes()
    except (binascii.Error, struct.error, UnicodeDecodeError) as e:
        raise FormatError(f"{TREE_NAME}: __jax_pytreedef_repr: {e}") from e
    arrays: dict[int, ArrayType] = {}
    structure = []
    leaf = 0
    for node in nodes:
        if node == LEAF:
            if leaf == len(descriptions):
                raise FormatError(f"{TREE_NAME}: more leaves than __jax_leaf_ids describes")
            array = _array_type(descriptions[leaf])
            if array is None:
                node = Node("none")
            else:
                arrays[leaf] = array
            leaf += 1
        structure.append(node)
    if leaf < len(descriptions):
        raise FormatError(f"{TREE_NAME}: {leaf} leaves, but {len(descriptions)} in __jax_leaf_ids")
    return TreeFile(tuple(structure), arrays)


def _array_type(description: Any) -> ArrayType | None:
    """Return the type that a text describes; None for that of None."""
    if description is None or description == "null":
        return None
    match = _ARRAY.fullmatch(description) if type(description) is str else None
    if match is None:
        raise FormatError(
            f"{TREE_NAME}: __jax_leaf_ids: expected an array or null, found {description!r:.80}"
        )
    sizes = [int(size) for size in match[2].replace(" ", "").split(",") if size]
    return ArrayType(match[1], tuple(sizes))


class _Tables:
    """The tables of a FlatBuffer. Offsets only lead forward, so that no table contains itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._nodes_allowed = len(data)  # each has more bytes than one, unless tables are shared

    def nodes(self) -> list[Node]:
        """Return the nodes in pre-order."""
        nodes = []
        stack = [(self._follow(0), 0)]
        while stack:
            table, depth = stack.pop()
            self._nodes_allowed -= 1
            if depth > MAX_DEPTH or self._nodes_allowed < 0:
                raise LimitError(f"{TREE_NAME}: it nests too deeply, or has more nodes than bytes")
            children = self._vector(table, _CHILDREN)
            nodes.append(self._node(table, len(children)))
            stack += [(child, depth + 1) for child in reversed(children)]
        return nodes

    def _node(self, table: int, count: int) -> Node:
        at = self._field(table, _KIND)
        kind = _LEAF if at is None else self._data[at]
        keys = tuple([self._text(at) for at in self._vector(table, _NAMES)])
        if kind == _LEAF and not count:
            return LEAF
        if kind == _NONE and not count:
            return Node("none")
        if kind in (_TUPLE, _LIST):
            return Node("tuple" if kind == _TUPLE else "list", count)
        if kind == _DICT and len(keys) == count == len(set(keys)):
            return Node("dict", count, keys)
        if kind == _CUSTOM:
            name = self._field(table, _TYPE_NAME)
            type_name = "" if name is None else self._text(self._follow(name))
            fields = self._fields(table)
            if fields is not None and len(fields) == count == len(set(fields)):
                return Node("namedtuple", count, fields, type_name)
            return Node("object", count, tuple(map(str, range(count))), type_name)
        raise FormatError(f"{TREE_NAME}: a node of kind {kind} with {count} children")

    def _fields(self, table: int) -> tuple[str, ...] | None:
        """Return the fields of a named tuple, which its data lists; None for another type."""
        at = self._field(table, _AUXDATA)
        if at is None:
            return None
        with suppress(ValueError, RecursionError):
            fields = json.loads(self._bytes(self._follow(at)))
            if type(fields) is list and all(type(field) is str for field in fields):
                return tuple(fields)
        return None

    def _unpack(self, layout: str, at: int) -> int:
        if at < 0:
            raise FormatError(f"{TREE_NAME}: an offset before the beginning")
        number: int = struct.unpack_from(layout, self._data, at)[0]
        return number

    def _follow(self, at: int) -> int:
        return at + self._unpack("<I", at)

    def _field(self, table: int, number: int) -> int | None:
        """Return the place of a field of a table; None if it is left out."""
        virtual = table - self._unpack("<i", table)
        entry = 4 + 2 * number
        if entry + 2 > self._unpack("<H", virtual):
            return None
        offset = self._unpack("<H", virtual + entry)
        if table + offset >= len(self._data):
            raise FormatError(f"{TREE_NAME}: a field after the end")
        return table + offset if offset else None

    def _vector(self, table: int, number: int) -> list[int]:
        """Return the places that a vector of offsets leads to; [] if it is left out."""
        at = self._field(table, number)
        if at is None:
            return []
        start = self._follow(at)
        count = self._unpack("<I", start)
        if 4 * count > len(self._data):
            raise FormatError(f"{TREE_NAME}: a vector of {count} entries")
        return [self._follow(start + 4 + 4 * i) for i in range(count)]

    def _bytes(self, at: int) -> bytes:
        length = self._unpack("<I", at)
        if at + 4 + length > len(self._data):
            raise FormatError(f"{TREE_NAME}: a text of {length} bytes")
        return self._data[at + 4 : at + 4 + length]

    def _text(self, at: int) -> str:
        return self._bytes(at).decode()
