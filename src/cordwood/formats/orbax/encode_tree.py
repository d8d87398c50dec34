"""The files that describe a tree to Orbax: `_METADATA`, the strings, and what says which are keys.

Orbax calls a leaf by its keys, joined by dots and unescaped. That is the path of its array too.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.errors import UnsupportedLeafError
from cordwood.formats.orbax.prng_keys import KEYS_FOLDER
from cordwood.formats.orbax.shardings import SHARDINGS_NAME
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import MAPPING, SEQUENCE, STORES_ZEROS, TREE_NAME
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, encode_metadata
from cordwood.formats.zarr.zarr_dtypes import stored_as
from cordwood.index import ARRAY_KINDS, LeafKind, LeafSpec, Node, Structure
from cordwood.keypath import DictKey, Key, KeyPath, path_label

# The dtypes in which Orbax stores Python numbers, with their codes in `struct`.
_NUMBERS: Mapping[LeafKind, tuple[str, str]] = {
    "bool": ("bool", "<?"),
    "int": ("int64", "<q"),
    "float": ("float64", "<d"),
}
_INT64 = range(-(1 << 63), 1 << 63)
_EMPTY = {
    "none": "None",
    "dict": "Dict",
    "list": "List",
    "tuple": "Tuple",
    "namedtuple": "NamedTuple",
    "object": "Dict",
}
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

    keys: tuple[tuple[str, int], ...]  # each with its key_type
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
    entries: dict[str, object] = {}
    names: dict[str, KeyPath] = {}
    leaves = iter(specs)
    for slot in _slots(structure):
        texts = tuple([text for text, _ in slot.keys])
        value_type, is_empty = _EMPTY.get(slot.kind, ""), slot.kind != "leaf"
        if not is_empty:
            leaf = next(leaves)
            name = ".".join(texts)
            if name in names:
                other = path_label(names[name])
                raise unsupported(leaf.key_path, f"Orbax has one name for it and {other}: {name!r}")
            names[name] = leaf.key_path
            value_type = _value_type(leaf)
        entries[repr(texts)] = {
            "key_metadata": [{"key": text, "key_type": kind} for text, kind in slot.keys],
            "value_metadata": {"value_type": value_type, "skip_deserialize": is_empty},
        }
    members = {
        "tree_metadata": entries,
        "use_ocdbt": use_ocdbt,
        "use_zarr3": False,
        STORES_ZEROS: True,
        "custom_metadata": None,
    }
    named = list(zip(names, specs, strict=True))
    strings = {name: leaf.value for name, leaf in named if leaf.kind == "str"}
    keys = [(name, leaf) for name, leaf in named if leaf.kind == "prng_key"]
    files = {TREE_NAME: _encoded(members)}
    if strings:
        files[STRINGS_NAME] = _encoded(strings)
    if keys:
        implementations = [_key_metadata(name, leaf) for name, leaf in keys]
        files[f"{KEYS_FOLDER}/process_0"] = _encoded({"array_metadatas": implementations})
        in_base64 = [
            base64.b64encode(name.encode(errors="surrogatepass")).decode() for name, _ in keys
        ]
        files[SHARDINGS_NAME] = _encoded(dict.fromkeys(in_base64, _ON_FIRST_DEVICE))
    return EncodedTree(list(names), files)


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


def _slots(structure: Structure) -> Iterator[_Slot]:
    """Return the leaves and the empty containers of a structure, in order."""
    stack: list[Iterator[tuple[tuple[str, int], ...]]] = [iter([()])]
    nodes = iter(structure)
    while stack:
        path = next(stack[-1], None)
        if path is None:
            stack.pop()
            continue
        node = next(nodes)
        if node.size:
            stack.append(iter([(*path, key) for key in _keys_of(node, path)]))
        else:
            yield _Slot(path, node.kind)


def _keys_of(node: Node, path: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    if not node.keys:
        return [(str(position), SEQUENCE) for position in range(node.size)]
    texts: dict[str, Key] = {}
    for key in node.keys:
        text = str(key.value if isinstance(key, DictKey) else key)
        if text in texts:
            where = tuple([text for text, _ in path])
            raise unsupported((*where, key), f"Orbax has one name for two keys: {text!r}")
        texts[text] = key
    return [(text, MAPPING) for text in texts]


def _value_type(leaf: LeafSpec) -> str:
    if leaf.kind in _NUMBERS:
        if leaf.kind == "int" and leaf.value not in _INT64:
            raise unsupported(leaf.key_path, "Orbax stores integers of 64 bits")
        return "scalar"
    if leaf.kind == "str":
        return "string"
    if leaf.kind not in ARRAY_KINDS:
        raise unsupported(leaf.key_path, f"Orbax stores no {leaf.kind}")
    if stored_as(leaf.dtype).disguised:
        raise unsupported(leaf.key_path, f"Orbax stores no arrays of {leaf.dtype}")
    # For a "jax.Array" without a sharding, Orbax needs a target.
    return "jax.Array" if leaf.kind == "prng_key" else "np.ndarray"


def _key_metadata(name: str, leaf: LeafSpec) -> dict[str, Any]:
    return {
        "array_metadata": {
            "param_name": name,
            "write_shape": list(leaf.shape),
            "chunk_shape": list(leaf.shape),
            "ext_metadata": {"random_key_impl": leaf.prng_impl},
        }
    }
