"""What a format cannot keep of a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.errors import counted
from cordwood.index import ARRAY_KINDS, Index
from cordwood.keypath import DictKey, Key, KeyPath, format_path

_SHOWN = 3


def losses_in_a_state_dict(index: Index, metadata: Mapping[str, str]) -> list[str]:
    """What Flax's msgpack has no place for, each with the key paths where it is.

    Arrays come back as numpy's there, and named tuples as dicts of their fields, with and
    without it: that is not counted.
    """
    sequences: list[KeyPath] = []
    keyed: list[KeyPath] = []
    stack: list[KeyPath] = [()]
    for node in index.structure:
        path = stack.pop()
        if node.kind in ("list", "tuple"):
            sequences.append(path)
        if any(isinstance(key, DictKey) for key in node.keys) and node.kind == "dict":
            keyed.append(path)
        keys: Sequence[Key] = node.keys or range(node.size)
        stack.extend([(*path, key) for key in reversed(keys)])
    weak = [leaf.key_path for leaf in index.leaves if leaf.weak_type]
    found = []
    if sequences:
        what = counted(len(sequences), "list or tuple", "lists and tuples")
        found.append(f"{what}, which become dicts of '0', '1' ...: {_listed(sequences)}")
    if keyed:
        what = counted(len(keyed), "dict")
        found.append(f"{what} with keys other than strings, which become such: {_listed(keyed)}")
    if weak:
        found.append(f"{counted(len(weak), 'weak type')}: {_listed(weak)}")
    found += _prng_keys(index)
    if metadata:
        found.append(f"{counted(len(metadata), 'string')} beside the tree: {', '.join(metadata)}")
    return found


def losses_in_tensors(index: Index) -> list[str]:
    """Return what files of nothing but named arrays have no place for, with the key paths.

    That names take the place of containers is not counted.
    """
    values = [leaf.key_path for leaf in index.leaves if leaf.kind not in ARRAY_KINDS]
    found = []
    if values:
        what = counted(len(values), "value that is no array", "values that are no arrays")
        found.append(f"{what}: {_listed(values)}")
    found += _prng_keys(index)
    return found


def _prng_keys(index: Index) -> list[str]:
    """Return a line about the PRNG keys, if there are any."""
    keys = [leaf.key_path for leaf in index.leaves if leaf.kind == "prng_key"]
    if not keys:
        return []
    what = counted(len(keys), "PRNG key array")
    return [f"{what}, of which only the key data stays: {_listed(keys)}"]


def _listed(paths: Sequence[KeyPath]) -> str:
    names = [format_path(path) or "the root" for path in paths[:_SHOWN]]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(names) + more
