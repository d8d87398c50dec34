"""The files that describe a tree to Orbax: `_METADATA`, the strings, and what says which are keys.

Orbax calls a leaf by its keys, joined by dots and unescaped. That is the path of its array too.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted  # type: ignore[attr-defined, unused-ignore]
from typing import Any, NamedTuple

from cordwood.errors import UnsupportedLeafError
from cordwood.formats.orbax.prng_keys import KEYS_FOLDER
from cordwood.formats.orbax.shardings import SHARDINGS_NAME
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import MAPPING, SEQUENCE, STORES_ZEROS, TREE_NAME
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, encode_metadata
from cordwood.formats.zarr.zarr_dtypes import stored_as
from cordwood.index import ARRAY_KINDS, LeafKind, LeafSpec, Node, Structure
from cordwood.keypath import DictKey, KeyPath, path_label

# The dtypes in which Orbax stores Python numbers, with their codes in `struct`.
_NUMBERS: Mapping[LeafKind, tuple[str, str]] = {
    "bool": ("bool", "<?"),
    "int": ("int64", "<q"),
    "float": ("float64", "<d"),
}
_INT64 = range(-(1 << 63), 1 << 63)
# The types of values, as Orbax calls them. For a "jax.Array" without a sharding it needs a target.
_EMPTY = {
    "none": "None",
    "dict": "Dict",
    "list": "List",
    "tuple": "Tuple",
    "namedtuple": "NamedTuple",
    "object": "Dict",
}
_ARRAY = "np.ndarray"
_STORED = {**dict.fromkeys(_NUMBERS, "scalar"), "str": "string", "prng_key": "jax.Array"}
# Without a target, Orbax returns PRNG keys as keys only where their sharding is recorded.
_ON_FIRST_DEVICE = json.dumps(
    {
        "sharding_type": "NamedSharding",
        "shape": [1],
        "axis_names": ["device"],
        "partition_spec": [],
        "device_mesh": {"mesh": [{"id": 0}]},
    }
)


class EncodedTree(NamedTuple):
    """A tree as Orbax describes it.

    Attributes:
        names: the names of the leaves.
        files: the contents of the files, by their paths.
    """

    names: Sequence[str]
    files: Mapping[str, bytes]


class _Slot(NamedTuple):
    """A leaf, or a container without elements."""

    keys: tuple[str, ...]
    key_metadata: str  # the same keys with their types, as the elements of a list in JSON
    kind: str  # of the node


def encode_tree(
    structure: Structure, specs: Sequence[LeafSpec], *, use_ocdbt: bool = False
) -> EncodedTree:
    """Return the description of a tree whose arrays are of zarr version 2.

    Args:
        structure: the structure.
        specs: its leaves.
        use_ocdbt: True if the arrays are in a database, False if each is a directory.

    Raises:
        UnsupportedLeafError: Orbax has no place for a leaf, or would confuse it with another one.
    """
    slots = _slots(structure)
    names = _names(slots, specs)
    leaves = iter(specs)
    entries: list[str] = []
    for keys, key_metadata, kind in slots:
        if kind == "leaf":
            value_type, is_empty = _STORED.get(next(leaves).kind, _ARRAY), "false"
        else:
            value_type, is_empty = _EMPTY[kind], "true"
        # The label is the repr of a tuple, as Orbax writes it: scripts of its users parse it.
        entries.append(
            f'{_quoted(repr(keys))}:{{"key_metadata":[{key_metadata}],"value_metadata":'
            f'{{"value_type":"{value_type}","skip_deserialize":{is_empty}}}}}'
        )
    others = {
        "use_ocdbt": use_ocdbt,
        "use_zarr3": False,
        STORES_ZEROS: True,
        "custom_metadata": None,
    }
    tree_json = ",".join(entries).encode()
    files = {TREE_NAME: b'{"tree_metadata":{%b},%b' % (tree_json, _encoded(others)[1:])}
    named = list(zip(names, specs, strict=True))
    strings = {name: leaf.value for name, leaf in named if leaf.kind == "str"}
    keys_of_prng = [(name, leaf) for name, leaf in named if leaf.kind == "prng_key"]
    if strings:
        files[STRINGS_NAME] = _encoded(strings)
    if keys_of_prng:
        implementations = [_key_metadata(name, leaf) for name, leaf in keys_of_prng]
        files[f"{KEYS_FOLDER}/process_0"] = _encoded({"array_metadatas": implementations})
        in_base64 = [
            base64.b64encode(name.encode(errors="surrogatepass")).decode()
            for name, _ in keys_of_prng
        ]
        files[SHARDINGS_NAME] = _encoded(dict.fromkeys(in_base64, _ON_FIRST_DEVICE))
    return EncodedTree(names, files)


def leaf_names(structure: Structure, specs: Sequence[LeafSpec]) -> Sequence[str]:
    """Return the names by which Orbax calls the leaves. Raises as `encode_tree`."""
    return _names(_slots(structure), specs)


def number_files(name: str, spec: LeafSpec) -> Mapping[str, bytes]:
    """Return the files of a Python number: an array without axes, called by that name."""
    dtype, code = _NUMBERS[spec.kind]
    prefix = f"{name}/" if name else ""
    return {
        prefix + METADATA_NAME: encode_metadata((), (), dtype, None, marked=False),
        f"{prefix}0": struct.pack(code, spec.value),
    }


def unsupported(key_path: KeyPath, problem: str) -> UnsupportedLeafError:
    """Return the error for a leaf that a checkpoint of Orbax cannot hold."""
    return UnsupportedLeafError(
        f"{path_label(key_path)}: {problem}; leave it out of the tree (select= of convert), or "
        "save without orbax=True"
    )


def _encoded(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def _slots(structure: Structure) -> list[_Slot]:
    """Return the leaves and the empty containers of a structure, in order."""
    slots: list[_Slot] = []
    nodes = iter(structure)
    stack: list[Iterator[tuple[tuple[str, ...], str]]] = [iter([((), "")])]
    while stack:
        for keys, key_metadata in stack[-1]:
            node = next(nodes)
            if node.size:
                stack.append(iter(_places_in(node, keys, key_metadata)))
                break
            slots.append(_Slot(keys, key_metadata, node.kind))
        else:
            stack.pop()
    return slots


def _places_in(
    node: Node, keys: tuple[str, ...], key_metadata: str
) -> list[tuple[tuple[str, ...], str]]:
    """Return of each child the keys, and their JSON."""
    before = f"{key_metadata}," if key_metadata else ""
    key_type = MAPPING if node.keys else SEQUENCE
    texts = [str(key.value if isinstance(key, DictKey) else key) for key in node.keys]
    if len(set(texts)) < len(texts):
        place = next(i for i, text in enumerate(texts) if text in texts[:i])
        problem = f"Orbax has one name for two keys: {texts[place]!r}"
        raise unsupported((*keys, node.keys[place]), problem)
    return [
        ((*keys, text), f'{before}{{"key":{_quoted(text)},"key_type":{key_type}}}')
        for text in texts or map(str, range(node.size))
    ]


def _names(slots: Sequence[_Slot], specs: Sequence[LeafSpec]) -> list[str]:
    """Return the names of the leaves, and check that Orbax has a place for each."""
    names: dict[str, KeyPath] = {}
    slots_of_leaves = [slot for slot in slots if slot.kind == "leaf"]
    for slot, leaf in zip(slots_of_leaves, specs, strict=True):
        name = ".".join(slot.keys)
        if name in names:
            other = path_label(names[name])
            raise unsupported(leaf.key_path, f"Orbax has one name for it and {other}: {name!r}")
        names[name] = leaf.key_path
        _require_storable(leaf)
    return list(names)


def _require_storable(leaf: LeafSpec) -> None:
    """Raise UnsupportedLeafError for a leaf that Orbax cannot hold."""
    if leaf.kind in _NUMBERS:
        if leaf.kind == "int" and leaf.value not in _INT64:
            raise unsupported(leaf.key_path, "Orbax stores integers of 64 bits")
    elif leaf.kind in ARRAY_KINDS:
        if stored_as(leaf.dtype).disguised:
            raise unsupported(leaf.key_path, f"Orbax stores no arrays of {leaf.dtype}")
    elif leaf.kind != "str":
        raise unsupported(leaf.key_path, f"Orbax stores no {leaf.kind}")


def _key_metadata(name: str, leaf: LeafSpec) -> dict[str, Any]:
    return {
        "array_metadata": {
            "param_name": name,
            "write_shape": list(leaf.shape),
            "chunk_shape": list(leaf.shape),
            "ext_metadata": {"random_key_impl": leaf.prng_impl},
        }
    }
