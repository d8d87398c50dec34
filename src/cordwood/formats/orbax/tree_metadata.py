"""`_METADATA`: the leaves of a tree, and the names of their arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError
from cordwood.formats.orbax.rich_types import parse_rich_types
from cordwood.index import LEAF, MAX_DEPTH, MAX_LEAVES, Node, NodeKind, Structure
from cordwood.io.open_files import naming
from cordwood.keypath import KeyPath

TREE_NAME = "_METADATA"
STORES_ZEROS = "store_array_data_equal_to_fill_value"  # a member of the file

# Values of key_type: a position in a sequence; a dict key, field or attribute.
SEQUENCE, MAPPING = 1, 2
_EMPTY: Mapping[str, Node] = {
    "None": Node("none"),
    "Dict": Node("dict"),
    "List": Node("list"),
    "Tuple": Node("tuple"),
    "NamedTuple": Node("namedtuple"),
}
_STORED = ("jax.Array", "np.ndarray", "scalar", "string")


class LeafMetadata(NamedTuple):
    """A leaf whose value is stored."""

    key_path: KeyPath
    name: str  # its keys joined by dots, unescaped
    value_type: str  # one of "jax.Array", "np.ndarray", "scalar", "string"
    in_aggregate: bool = False  # the value is in the aggregate file, and not in an array


class TreeMetadata(NamedTuple):
    """The checked contents of the file."""

    structure: Structure
    leaves: tuple[LeafMetadata, ...]  # in the order of the structure
    use_ocdbt: bool | None  # None: the file does not say
    use_zarr3: bool | None
    stores_zeros: bool | None  # chunks that equal the fill value are stored too


class _Value(NamedTuple):
    """A leaf, or a container without elements."""

    value_type: str
    in_aggregate: bool


class _Branch:
    """A container whose children are still being added."""

    __slots__ = ("children", "is_sequence")

    def __init__(self) -> None:
        self.children: dict[str, _Branch | _Value] = {}
        self.is_sequence = False


def parse_tree_metadata(
    data: bytes, aggregated: Collection[tuple[str, ...]] = frozenset()
) -> TreeMetadata:
    """Parse and check the file.

    The file does not distinguish tuples from lists, and keys of dicts have become strings. If the
    writer was configured for rich types, tuples and named tuples are recorded.

    Args:
        data: the bytes of the file.
        aggregated: the keys of the values in the aggregate file. Orbax calls some of them None, as
            it does with what it cannot store: bytes, for example.

    Raises FormatError and LimitError, whose messages do not name the file's path.
    """
    members = parse_json(data, TREE_NAME, allow_nan=True)
    entries = members.get("tree_metadata") if type(members) is dict else None
    if type(entries) is not dict:
        raise FormatError(f"{TREE_NAME}: expected a JSON object with tree_metadata")
    if len(entries) > MAX_LEAVES:
        raise LimitError(f"{TREE_NAME}: {len(entries)} leaves; expected at most {MAX_LEAVES}")
    root: _Branch | _Value = _Branch()
    for label, entry in entries.items():
        with naming(f"{TREE_NAME}: tree_metadata: {label!r:.200}"):
            keys, value = _entry(entry)
            if value.value_type == "None" and tuple([key for key, _ in keys]) in aggregated:
                value = _Value("np.ndarray", in_aggregate=True)
            if keys:
                assert isinstance(root, _Branch)
                _put(root, keys, value)
            elif len(entries) > 1:
                raise FormatError("this leaf is the whole tree, but there are other leaves")
            else:
                root = value
    with naming(TREE_NAME):
        structure, leaves = _flatten(root, parse_rich_types(members.get("value_metadata_tree")))
    return TreeMetadata(
        structure,
        leaves,
        _flag(members, "use_ocdbt"),
        _flag(members, "use_zarr3"),
        _flag(members, STORES_ZEROS),
    )


def _flag(members: Mapping[str, Any], name: str) -> bool | None:
    flag = members.get(name)
    if flag is not None and type(flag) is not bool:
        raise FormatError(f"{TREE_NAME}: {name}: expected true or false, found {flag!r:.40}")
    return flag


def _entry(entry: Any) -> tuple[list[tuple[str, bool]], _Value]:
    """Return the keys of a leaf (True: a position in a sequence), and what it is."""
    metadata = entry.get("value_metadata") if type(entry) is dict else None
    if type(metadata) is not dict or type(entry.get("key_metadata")) is not list:
        raise FormatError("expected an object with key_metadata and value_metadata")
    value_type = metadata.get("value_type")
    if type(value_type) is not str or not (value_type in _EMPTY or value_type in _STORED):
        raise FormatError(
            f"value_type {value_type!r:.80} is unknown; expected one of "
            f"{', '.join([*_STORED, *_EMPTY])}"
        )
    keys = []
    for item in entry["key_metadata"]:
        key, kind = (item.get("key"), item.get("key_type")) if type(item) is dict else (None, None)
        if type(key) is not str or kind not in (SEQUENCE, MAPPING):
            raise FormatError(f"key_metadata: expected a key and its key_type, found {item!r:.80}")
        keys.append((key, kind == SEQUENCE))
    if len(keys) > MAX_DEPTH:
        raise LimitError(f"{len(keys)} keys; expected at most {MAX_DEPTH} (MAX_DEPTH)")
    in_aggregate = value_type in _STORED and metadata.get("skip_deserialize") is True
    return keys, _Value(value_type, in_aggregate)


def _put(root: _Branch, keys: list[tuple[str, bool]], value: _Value) -> None:
    node = root
    for depth, (key, is_position) in enumerate(keys):
        if not node.children:
            node.is_sequence = is_position
        elif node.is_sequence != is_position:
            raise FormatError(f"{key!r:.80}: positions and keys in one container")
        child = node.children.get(key)
        if depth + 1 == len(keys):
            if child is not None:
                raise FormatError("it occurs twice, or other leaves are inside it")
            node.children[key] = value
        elif isinstance(child, _Value):
            raise FormatError(f"it is inside {key!r:.80}, which is a leaf")
        else:
            child = node.children[key] = child or _Branch()
            node = child


def _flatten(
    root: _Branch | _Value, kinds: Mapping[tuple[str, ...], tuple[NodeKind, str]]
) -> tuple[Structure, tuple[LeafMetadata, ...]]:
    nodes: list[Node] = []
    leaves: list[LeafMetadata] = []
    names: set[str] = set()
    stack: list[tuple[KeyPath, _Branch | _Value]] = [((), root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Value):
            empty = _EMPTY.get(value.value_type)
            nodes.append(LEAF if empty is None else empty)
            if empty is None:
                name = ".".join(map(str, path))
                if name in names:
                    raise FormatError(
                        f"two leaves are called {name!r:.200}: they were saved to one place, and "
                        "one of them is lost"
                    )
                names.add(name)
                leaves.append(LeafMetadata(path, name, *value))
            continue
        node, keys = _container(value, *kinds.get(tuple(map(str, path)), ("list", "")))
        nodes.append(node)
        stack += [((*path, key), value.children[str(key)]) for key in reversed(keys)]
    return tuple(nodes), tuple(leaves)


def _container(value: _Branch, kind: NodeKind, name: str) -> tuple[Node, list[Any]]:
    """Return the node of a container and its keys in order."""
    count = len(value.children)
    if value.is_sequence and set(value.children) == set(map(str, range(count))):
        return Node("tuple" if kind == "tuple" else "list", count), list(range(count))
    keys = tuple(value.children)
    if kind == "namedtuple":
        return Node("namedtuple", count, keys, name), list(keys)
    return Node("dict", count, keys), list(keys)
