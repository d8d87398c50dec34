"""Structures: the containers of a tree without its leaves, as a flat list in pre-order.

The list is flat so that deep nesting needs no recursion and no deeply nested JSON.
docs/format.md describes the JSON form.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from cordwood.errors import FormatError, LimitError, UnsupportedLeafError
from cordwood.keypath import DictKey, Key, KeyPath

NodeKind: TypeAlias = Literal["leaf", "none", "dict", "list", "tuple", "namedtuple", "object"]


class Node(NamedTuple):
    """One node; its children follow it in the list, each with its descendants."""

    kind: NodeKind
    size: int = 0  # the number of children
    keys: tuple[str | DictKey, ...] = ()  # dict keys or field names; empty for list and tuple
    type_name: str = ""  # of a namedtuple or object; only displayed, never imported


LEAF = Node("leaf")
Structure: TypeAlias = tuple[Node, ...]

MAX_DEPTH = 1000  # of nesting; the limit of flattening too
MAX_LEAVES = 1 << 24
MAX_KEY_DEPTH = 32  # of a tuple that is a dict key
# The number of keys in all leaf paths together. A path repeats the keys above it, so without this
# limit a few bytes of deep structure could need gigabytes of paths.
MAX_PATH_KEYS = 1 << 20
MAX_PATH_KEYS_PER_NODE = 64  # added for each node

_NONE = Node("none")
_SAFE_INTEGER = 1 << 53  # every JSON reader keeps integers up to this exactly
_HEX = re.compile(r"-?[0-9a-f]+")


def leaf_paths(structure: Structure) -> list[KeyPath]:
    """Return the key paths of the leaves, in order.

    Raises:
        LimitError: together they hold more keys than MAX_PATH_KEYS allows.
    """
    paths: list[KeyPath] = []
    above: list[tuple[KeyPath, Iterator[Key]]] = []
    budget = MAX_PATH_KEYS + MAX_PATH_KEYS_PER_NODE * len(structure)
    path: KeyPath = ()
    i = 0
    while i < len(structure):
        while above:
            prefix, keys = above[-1]
            for key in keys:
                path = (*prefix, key)
                break
            else:
                above.pop()
                continue
            break
        kind, size, node_keys, _ = structure[i]
        i += 1
        if kind == "leaf":
            paths.append(path)
            budget -= len(path)
        elif size and structure[i : i + size].count(LEAF) == size:
            budget -= (len(path) + 1) * size
            if budget >= 0:
                paths += [(*path, key) for key in node_keys or range(size)]
            i += size
        elif size:
            above.append((path, iter(node_keys or range(size))))
        if budget < 0:
            raise LimitError(
                f"the key paths of {len(structure)} nodes hold more keys than the limit: "
                f"{MAX_PATH_KEYS} (MAX_PATH_KEYS) and {MAX_PATH_KEYS_PER_NODE} per node; "
                "the tree is both very deep and very wide"
            )
    return paths


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
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON cannot tell two lone surrogates from a pair
            return {"utf8": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
        return str(value)
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < _SAFE_INTEGER else {"int": f"{value:x}"}
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
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
    for position, item in enumerate(value):
        if not missing:
            raise FormatError(
                f"{_item(position)}: the tree is complete before it, found {_shown(item)}"
            )
        if type(item) is int:
            leaves += item
            if item < 1:
                raise FormatError(f"{_item(position)}: expected at least one leaf, found {item}")
            if leaves > max_leaves:
                raise LimitError(
                    f"{_item(position)}: {leaves} leaves or more; expected at most {max_leaves}"
                )
            if item < missing[-1]:
                missing[-1] -= item
            elif item == missing[-1] and len(missing) > 1 and missing[-2]:
                missing.pop()
            else:
                _add_leaves(missing, item, position)
            nodes += [LEAF] * item
            continue
        node = _NONE if item is None else _node_from_json(item, position, dict_nodes)
        nodes.append(node)
        missing[-1] -= 1
        if node.size:
            missing.append(node.size)
            if len(missing) > MAX_DEPTH + 1:
                raise LimitError(
                    f"{_item(position)}: nested deeper than {MAX_DEPTH} levels (MAX_DEPTH)"
                )
        else:
            _close(missing)
    if missing:
        raise FormatError(f"structure: ends with {sum(missing)} nodes missing")
    return tuple(nodes)


def _item(position: int) -> str:
    return f"structure item {position}"


def _add_leaves(missing: list[int], count: int, position: int) -> None:
    while count:
        if not missing:
            raise FormatError(f"{_item(position)}: {count} leaves more than the tree has room for")
        taken = min(count, missing[-1])
        missing[-1] -= taken
        count -= taken
        _close(missing)


def _close(missing: list[int]) -> None:
    """Close the containers that need no more children."""
    while missing and missing[-1] == 0:
        missing.pop()


def _node_from_json(item: object, position: int, dict_nodes: dict[tuple[Any, ...], Node]) -> Node:
    if type(item) is list and len(item) == 2 and item[0] == "dict" and type(item[1]) is list:
        keys = tuple(item[1])
        try:
            node = dict_nodes.get(keys)
        except TypeError:  # a key that is no string, and not hashable
            node = None
        if node is None:
            node = _other_node(item, _item(position))
            if set(map(type, node.keys)) <= {str}:
                dict_nodes[node.keys] = node
        return node
    return _other_node(item, _item(position))


def _other_node(item: object, where: str) -> Node:
    if type(item) is not list or not item:
        raise FormatError(f"{where}: expected a number, null or a list, found {_shown(item)}")
    kind = item[0]
    if kind in ("list", "tuple"):
        if len(item) != 2 or type(item[1]) is not int or item[1] < 0:
            raise FormatError(f"{where}: expected [{kind!r}, length], found {_shown(item)}")
        return Node(kind, item[1])
    if kind not in ("dict", "namedtuple", "object"):
        raise FormatError(f"{where}: unknown kind of node {_shown(kind)}")
    if not 2 <= len(item) <= 3 or type(item[1]) is not list:
        raise FormatError(f"{where}: expected [{kind!r}, keys, type name], found {_shown(item)}")
    keys = _keys_from_json(item[1], where)
    if len(set(keys)) != len(keys):
        seen: set[str | DictKey] = set()
        for key in keys:
            if key in seen:
                raise FormatError(f"{where}: the key {_shown(key)} occurs twice")
            seen.add(key)
    type_name = _key_from_json(item[2], where) if len(item) == 3 else ""
    if not isinstance(type_name, str):
        raise FormatError(f"{where}: expected a type name, found {_shown(item[2])}")
    return Node(kind, len(keys), keys, type_name)


def _keys_from_json(items: list[Any], where: str) -> tuple[str | DictKey, ...]:
    if set(map(type, items)) <= {str}:
        return tuple(items)
    keys = [_key_from_json(item, where) for item in items]
    return tuple([key if isinstance(key, str) else DictKey(key) for key in keys])


def _key_from_json(item: object, where: str, depth: int = 0) -> Any:
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
        except (binascii.Error, UnicodeDecodeError, TypeError, ValueError) as e:
            raise FormatError(f"{where}: {_shown(item)} is not valid base64 ({e})") from e
        if tag == "int" and type(value) is str and _HEX.fullmatch(value):
            return int(value, 16)
        if tag == "tuple" and type(value) is list and depth < MAX_KEY_DEPTH:
            return tuple([_key_from_json(part, where, depth + 1) for part in value])
    raise FormatError(f"{where}: {_shown(item)} is not a key")


def _shown(value: object) -> str:
    """Return the repr of a value from a file, shortened for a message."""
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)} items"
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a deep nest
        return f"a {type(value).__name__} that is too long to show"


def jax_order(structure: Structure) -> list[int]:
    """Return the positions of the leaves in the structure, in the order of jax.tree.leaves.

    jax sorts the keys of dicts; a structure has them in the order of the dict. If keys cannot be
    compared, jax refuses the tree; here they keep their order.
    """
    leaves, ends = _extents(structure)
    order: list[int] = []
    stack = [0]
    while stack:
        at = stack.pop()
        node = structure[at]
        if node.kind == "leaf":
            order.append(leaves[at])
            continue
        children = []
        child = at + 1
        for _ in range(node.size):
            children.append(child)
            child = ends[child]
        stack += [children[i] for i in reversed(_child_order(node))]
    return order


def _extents(structure: Structure) -> tuple[list[int], list[int]]:
    """Return, for each node, the number of leaves before it and the end of its descendants."""
    count = len(structure)
    leaves = [0] * count
    seen = 0
    for i, node in enumerate(structure):
        leaves[i] = seen
        seen += node.kind == "leaf"
    ends = [0] * count
    stack: list[int] = []  # nodes after the current one, the next one uppermost
    for i in range(count - 1, -1, -1):
        size = structure[i].size
        if size:
            last = stack[-size]
            del stack[-size:]
            ends[i] = ends[last]
        else:
            ends[i] = i + 1
        stack.append(i)
    return leaves, ends


def _child_order(node: Node) -> list[int]:
    positions = list(range(node.size))
    if node.kind != "dict" or node.type_name == "OrderedDict":
        return positions
    keys: list[Any] = [key.value if isinstance(key, DictKey) else key for key in node.keys]
    try:
        return sorted(positions, key=keys.__getitem__)
    except TypeError:
        return positions
