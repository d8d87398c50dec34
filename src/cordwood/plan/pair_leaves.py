"""The leaves of two trees side by side, whatever their formats made of the names. Pure."""

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
    """What a leaf is called where it is compared with those of a tree of other naming.

    Keys are strings where one side has made strings of them, and joined where one side has
    joined them; so names that differ for one side may be one for both.
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
    """The leaves of two trees by their names; of several with one name the last counts."""
    there = {comparison_name(path, other_naming, naming): i for i, path in enumerate(others)}
    both = []
    only = []
    for i, path in enumerate(paths):
        found = there.pop(comparison_name(path, naming, other_naming), None)
        if found is None:
            only.append(i)
        else:
            both.append((i, found))
    return Pairs(tuple(both), tuple(only), tuple(there.values()))
