"""Pairs of the leaves of two trees, by name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from cordwood.index import Naming
from cordwood.keypath import DictKey, KeyPath

_JOINED = ("dotted", "slashed")


class Pairs(NamedTuple):
    """Positions of leaves in two trees."""

    both: tuple[tuple[int, int], ...]  # in the order of the first
    first_only: tuple[int, ...]
    second_only: tuple[int, ...]


def comparison_name(path: KeyPath, naming: Naming, other: Naming) -> Hashable:
    """Return the name of a leaf for comparison with the leaves of a tree of another naming.

    Keys become strings if one side has turned them into strings, and are joined if one side has
    joined them. So names that differ on one side may be equal in the comparison.
    """
    if naming == other == "exact":
        return path
    keys = tuple([str(key.value if isinstance(key, DictKey) else key) for key in path])
    if naming not in _JOINED and other not in _JOINED:
        return keys
    name = "/".join(keys)
    return name.replace("/", ".") if "dotted" in (naming, other) else name


def pair_leaves(
    paths: Sequence[KeyPath], naming: Naming, others: Sequence[KeyPath], other_naming: Naming
) -> Pairs:
    """Pair the leaves of two trees by name; if several have one name, the last one counts."""
    unpaired = {comparison_name(path, other_naming, naming): i for i, path in enumerate(others)}
    both = []
    first_only = []
    for i, path in enumerate(paths):
        other = unpaired.pop(comparison_name(path, naming, other_naming), None)
        if other is None:
            first_only.append(i)
        else:
            both.append((i, other))
    return Pairs(tuple(both), tuple(first_only), tuple(unpaired.values()))
