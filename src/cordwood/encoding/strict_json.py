"""JSON: strict parsing, and exact forms of Python values and of structures.

One file: dict keys in a structure, and values, have the same forms of what JSON cannot hold.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from cordwood.errors import FormatError, LimitError, UnsupportedLeafError
from cordwood.index import LEAF, MAX_DEPTH, MAX_LEAVES, LeafKind, Node, Structure
from cordwood.keypath import DictKey


class _DuplicateKeyError(ValueError):
    def __init__(self, key: str) -> None:
        self.key = key


def parse_json(
    text: str | bytes, where: str, *, start: int | None = None, allow_nan: bool = False
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON; bytes are UTF-8.
        where: the name of the text for the error.
        start: the byte offset of `text` in its file; with it errors name byte offsets.
        allow_nan: accept NaN and infinities in Python's notation.

    Raises:
        FormatError: the text is not strict JSON, or not UTF-8.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as e:
            raise FormatError(f"{where} is not UTF-8 at byte {e.start}") from e
    try:
        return (_WITH_NAN if allow_nan else _DECODER).decode(text)
    except json.JSONDecodeError as e:
        raise FormatError(f"{where} is not JSON: {e.msg}{_at(text, e.pos, start)}") from e
    except _DuplicateKeyError as e:
        raise FormatError(
            f"{where}: the key {e.key!r:.200} occurs twice{_second(text, e.key, start)}"
        ) from e
    except RecursionError as e:
        raise FormatError(f"{where} nests too deeply") from e
    except ValueError as e:  # NaN, or an integer of thousands of digits
        raise FormatError(f"{where}: {e}") from e


def parse_value(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `position`, and the position of its end.

    Raises:
        FormatError: there is no JSON value at `position`.
    """
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"no JSON at character {position}") from e


def _at(text: str, position: int, start: int | None) -> str:
    if start is None:
        return f" (at character {position})"
    offset = start + len(text[:position].encode("utf-8", "surrogatepass"))
    return f" (at byte {offset})"


def _second(text: str, key: str, start: int | None) -> str:
    for quoted in (json.dumps(key, ensure_ascii=False), json.dumps(key)):
        first = text.find(f"{quoted}:")
        second = text.find(f"{quoted}:", first + 1)
        if second > first >= 0:
            return _at(text, second, start)
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateKeyError(_first_repeated([key for key, _ in pairs]))
    return members


def _first_repeated(keys: Sequence[Any]) -> Any:
    seen = set()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return key


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a finite number, found {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique)


# Exact forms of Python values: every bit of a float, ints of any size, any str.

_SAFE_INTEGER = 1 << 53  # every JSON reader keeps integers up to this exactly
_HEX = re.compile(r"-?[0-9a-f]+")
_BITS = re.compile(r"[0-9a-f]{16}")


def encode_value(kind: LeafKind, value: Any) -> Any:
    """Return the JSON form of a Python value of one of VALUE_KINDS."""
    return _CODERS[kind][0](value)


def decode_value(kind: LeafKind, stored: Any) -> Any:
    """Return the value whose JSON form is `stored`.

    Raises:
        FormatError: `stored` is no such form; the message does not name its place in the file.
    """
    try:
        return _CODERS[kind][1](stored)
    except (ValueError, TypeError) as e:
        raise FormatError(f"expected a value of kind {kind}, found {stored!r:.80}") from e


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _decode_bool(stored: Any) -> bool:
    _require(type(stored) is bool)
    return bool(stored)


def _encode_int(value: int) -> int | str:
    return value if abs(value) < _SAFE_INTEGER else f"{value:x}"


def _decode_int(stored: Any) -> int:
    if type(stored) is int:
        return stored
    _require(type(stored) is str and _HEX.fullmatch(stored) is not None)
    return int(stored, 16)


def _encode_float(value: float) -> float | str:
    return value if math.isfinite(value) else struct.pack(">d", value).hex()


def _decode_float(stored: Any) -> float:
    if type(stored) is float:
        _require(math.isfinite(stored))
        return stored
    _require(type(stored) is str and _BITS.fullmatch(stored) is not None)
    return float(struct.unpack(">d", bytes.fromhex(stored))[0])


def _encode_complex(value: complex) -> list[float | str]:
    return [_encode_float(value.real), _encode_float(value.imag)]


def _decode_complex(stored: Any) -> complex:
    _require(type(stored) is list and len(stored) == 2)
    return complex(_decode_float(stored[0]), _decode_float(stored[1]))


def _encode_str(value: str) -> str | dict[str, str]:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON cannot tell two lone surrogates from a pair
        return {"utf8": _encode_bytes(value.encode("utf-8", "surrogatepass"))}
    return value


def _decode_str(stored: Any) -> str:
    if type(stored) is dict:
        _require(list(stored) == ["utf8"])
        return _decode_bytes(stored["utf8"]).decode("utf-8", "surrogatepass")
    _require(type(stored) is str)
    return str(stored)


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_bytes(stored: Any) -> bytes:
    _require(type(stored) is str)
    return base64.b64decode(stored, validate=True)


_CODERS: dict[LeafKind, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bool": (bool, _decode_bool),
    "int": (_encode_int, _decode_int),
    "float": (_encode_float, _decode_float),
    "complex": (_encode_complex, _decode_complex),
    "str": (_encode_str, _decode_str),
    "bytes": (_encode_bytes, _decode_bytes),
}
VALUE_KINDS = frozenset(_CODERS)


# The containers of a tree: a flat list, see docs/format.md.

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
        return _encode_str(str(value))
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < _SAFE_INTEGER else {"int": f"{value:x}"}
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is bytes:
        return {"bytes": _encode_bytes(value)}
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
        taken = min(count, missing[-1])
        missing[-1] -= taken
        count -= taken
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
        raise FormatError(f"the key {_shown(_first_repeated(keys))} occurs twice")
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
        if tag == "int" and type(value) is str and _HEX.fullmatch(value):
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
