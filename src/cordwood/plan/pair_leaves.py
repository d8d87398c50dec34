"""Pairs of leaves of two trees, by name, or by contents if they were renamed. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood.index import Naming
from cordwood.keypath import DictKey, KeyPath

_JOINED = ("dotted", "slashed")
_FEW_ELEMENTS = 16
_SEPARATOR = re.compile(r"[./]")


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


class UnpairedLeaf(NamedTuple):
    """An array leaf whose key path the other tree lacks."""

    number: int  # its position in its tree
    key_path: KeyPath
    size: int  # the number of elements
    contents: Hashable  # equal for leaves of equal type and elements


def pair_renamed(
    first: Iterable[UnpairedLeaf], second: Iterable[UnpairedLeaf]
) -> list[tuple[int, int]]:
    """Return the positions of leaves that were renamed, in the order of the first tree.

    Leaves of equal contents are paired by the ends of their key paths: first those with the longest
    end in common (`a/0/bias` and `b/0/bias`), then those with a shorter one. Those without a
    common end are paired in order, if each side has equally many: biases that are all zero, in
    layers that have new names. If one side has more, nothing tells which of them was renamed, and
    they are not paired. Leaves of fewer than 16 elements often have equal contents by chance. They
    are paired only by a common last key that is a name, not a position. Empty leaves are not
    paired.

    >>> a = [UnpairedLeaf(0, ("a", "kernel"), 99, "x"), UnpairedLeaf(1, ("a", "bias"), 99, "x")]
    >>> b = [UnpairedLeaf(5, ("b", "bias"), 99, "x"), UnpairedLeaf(6, ("b", "weight"), 99, "x")]
    >>> pair_renamed(a, b)
    [(0, 6), (1, 5)]
    """
    ours, theirs = _by_contents(first), _by_contents(second)
    pairs: list[tuple[int, int]] = []
    for contents, mine in ours.items():
        other = theirs.get(contents)
        if other:
            pairs += _pairs(mine, other)
    return sorted(pairs)


def _by_contents(leaves: Iterable[UnpairedLeaf]) -> dict[Hashable, list[UnpairedLeaf]]:
    groups = defaultdict(list)
    for leaf in leaves:
        if leaf.size:
            groups[leaf.contents].append(leaf)
    return groups


def _pairs(
    first: Sequence[UnpairedLeaf], second: Sequence[UnpairedLeaf]
) -> Iterator[tuple[int, int]]:
    ours = {leaf.number: _names(leaf.key_path) for leaf in first}
    theirs = {leaf.number: _names(leaf.key_path) for leaf in second}
    is_small = first[0].size < _FEW_ELEMENTS
    longest = min(max(map(len, ours.values())), max(map(len, theirs.values())))
    for length in range(longest, 0, -1):
        unpaired = defaultdict(list)
        for number, names in reversed(theirs.items()):
            unpaired[names[-length:]].append(number)
        for number, names in list(ours.items()):
            numbers = unpaired.get(names[-length:])
            if len(names) < length or not numbers or (is_small and names[-1].isdecimal()):
                continue
            other = numbers.pop()
            yield number, other
            del ours[number], theirs[other]
    if not is_small and len(ours) == len(theirs):
        yield from zip(ours, theirs, strict=True)


def _names(path: KeyPath) -> tuple[str, ...]:
    """Return the keys of a path as strings; keys that a format has joined are split."""
    text = "/".join([str(key.value if isinstance(key, DictKey) else key) for key in path])
    return tuple(_SEPARATOR.split(text))
