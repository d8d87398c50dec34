"""Exact form of the structure of a tree in JSON: a flat list of containers, see docs/format.md."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, cast

from cordwood.encoding.json_values import HEX, SAFE_INTEGER, encode_bytes, encode_str
from cordwood.encoding.strict_json import first_repeated
from cordwood.errors import FormatError, LimitError, UnsupportedLeafError
from cordwood.index import LEAF, MAX_DEPTH, MAX_LEAVES, Node, Structure
from cordwood.keypath import DictKey

MAX_KEY_DEPTH = 32  # of a tuple that is a dict key
_NONE = Node("none")


def structure_to_json(structure: Structure) -> list[Any]:
    """Return the JSON form: a number for a run of leaves, a list or null for any other node.

    Raises:
        UnsupportedLeafError: a dict key has no JSON form.
    """
    items: list[Any] = []
    run = 0
    for node in structure:
        if node[0] == "leaf":
            run += 1
            continue
        if run:
            items.append(run)
            run = 0
        items.append(_node_to_json(node))
    if run:
        items.append(run)
    return items


def _node_to_json(node: Node) -> Any:
    if node.kind == "none":
        return None
    if node.kind in ("list", "tuple"):
        return [node.kind, node.size]
    item: list[Any] = [node.kind, _keys_to_json(node.keys)]
    if node.type_name:
        item.append(_key_to_json(node.type_name))
    return item


def _keys_to_json(keys: Sequence[str | DictKey]) -> list[Any]:
    try:
        "".join(cast("Sequence[str]", keys)).encode()
    except (TypeError, UnicodeEncodeError):
        return [_key_to_json(key) for key in keys]
    return list(keys)


def _key_to_json(key: object, depth: int = 0) -> Any:
    value = key.value if isinstance(key, DictKey) else key
    if isinstance(value, str):
        return encode_str(str(value))
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < SAFE_INTEGER else {"int": f"{value:x}"}
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is bytes:
        return {"bytes": encode_bytes(value)}
    if type(value) is tuple and depth < MAX_KEY_DEPTH:
        return {"tuple": [_key_to_json(item, depth + 1) for item in value]}
    raise UnsupportedLeafError(
        f"dict key {value!r:.200} cannot be stored: expected str, int, bool, finite float, None, "
        f"bytes, or a tuple of these nested at most {MAX_KEY_DEPTH} deep; convert the key"
    )


def structure_from_json(value: object, *, max_leaves: int = MAX_LEAVES) -> Structure:
    """Return the structure whose JSON form is `value`.

    Raises:
        FormatError: `value` is no such form; the message names the item.
        LimitError: there are more leaves than `max_leaves`, or deeper nesting than MAX_DEPTH.
    """
    if type(value) is not list:
        raise FormatError(f"structure: expected a list, found {_shown(value)}")
    nodes: list[Node] = []
    missing = [1]  # children that each open container still needs; the root counts as a child
    leaves = 0
    dict_nodes: dict[tuple[Any, ...], Node] = {}  # dicts of str, by keys: many dicts are equal
    position = -1
    try:
        for item in value:
            position += 1
            if not missing:
                raise FormatError(f"the tree is complete before it, found {_shown(item)}")
            if type(item) is int:
                leaves += item
                if item < 1:
                    raise FormatError(f"expected at least one leaf, found {item}")
                if leaves > max_leaves:
                    raise LimitError(f"{leaves} leaves or more; expected at most {max_leaves}")
                _add_leaves(missing, item)
                nodes += [LEAF] * item
                continue
            node = _NONE if item is None else _node_from_json(item, dict_nodes)
            nodes.append(node)
            missing[-1] -= 1
            if node.size:
                missing.append(node.size)
                if len(missing) > MAX_DEPTH + 1:
                    raise LimitError(f"nested deeper than {MAX_DEPTH} levels (MAX_DEPTH)")
            else:
                _close(missing)
    except FormatError as e:
        raise type(e)(f"structure item {position}: {e}") from e
    if missing:
        raise FormatError(f"structure: ends with {sum(missing)} nodes missing")
    return tuple(nodes)


def _add_leaves(missing: list[int], count: int) -> None:
    while count:
        if not missing:
            raise FormatError(f"{count} leaves more than the tree has room for")
        added = min(count, missing[-1])
        missing[-1] -= added
        count -= added
        _close(missing)


def _close(missing: list[int]) -> None:
    """Close the containers that need no more children."""
    while missing and missing[-1] == 0:
        missing.pop()


def _node_from_json(item: object, dict_nodes: dict[tuple[Any, ...], Node]) -> Node:
    if type(item) is list and len(item) == 2 and item[0] == "dict" and type(item[1]) is list:
        keys = tuple(item[1])
        try:
            node = dict_nodes.get(keys)
        except TypeError:  # a key that is no string, and not hashable
            node = None
        if node is None:
            node = _other_node(item)
            if set(map(type, node.keys)) <= {str}:
                dict_nodes[node.keys] = node
        return node
    return _other_node(item)


def _other_node(item: object) -> Node:
    if type(item) is not list or not item:
        raise FormatError(f"expected a number, null or a list, found {_shown(item)}")
    kind = item[0]
    if kind in ("list", "tuple"):
        if len(item) != 2 or type(item[1]) is not int or item[1] < 0:
            raise FormatError(f"expected [{kind!r}, length], found {_shown(item)}")
        return Node(kind, item[1])
    if kind not in ("dict", "namedtuple", "object"):
        raise FormatError(f"unknown kind of node {_shown(kind)}")
    if not 2 <= len(item) <= 3 or type(item[1]) is not list:
        raise FormatError(f"expected [{kind!r}, keys, type name], found {_shown(item)}")
    keys = _keys_from_json(item[1])
    if len(set(keys)) != len(keys):
        raise FormatError(f"the key {_shown(first_repeated(keys))} occurs twice")
    type_name = _key_from_json(item[2]) if len(item) == 3 else ""
    if not isinstance(type_name, str):
        raise FormatError(f"expected a type name, found {_shown(item[2])}")
    return Node(kind, len(keys), keys, type_name)


def _keys_from_json(items: list[Any]) -> tuple[str | DictKey, ...]:
    if set(map(type, items)) <= {str}:
        return tuple(items)
    keys = [_key_from_json(item) for item in items]
    return tuple([key if isinstance(key, str) else DictKey(key) for key in keys])


def _key_from_json(item: object, depth: int = 0) -> Any:
    if item is None or type(item) in (str, bool, int):
        return item
    if type(item) is float and math.isfinite(item):
        return item
    if type(item) is dict and len(item) == 1:
        ((tag, value),) = item.items()
        try:
            if tag == "utf8":
                return base64.b64decode(value, validate=True).decode("utf-8", "surrogatepass")
            if tag == "bytes":
                return base64.b64decode(value, validate=True)
        except (TypeError, ValueError) as e:
            raise FormatError(f"{_shown(item)} is not valid base64 ({e})") from e
        if tag == "int" and type(value) is str and HEX.fullmatch(value):
            return int(value, 16)
        if tag == "tuple" and type(value) is list and depth < MAX_KEY_DEPTH:
            return tuple([_key_from_json(part, depth + 1) for part in value])
    raise FormatError(f"{_shown(item)} is not a key")


def _shown(value: object) -> str:
    """Return the repr of a value from a file, shortened for a message."""
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)} items"
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a deep nest
        return f"a {type(value).__name__} that is too long to show"
