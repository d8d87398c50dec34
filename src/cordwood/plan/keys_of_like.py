"""The types of keys that `rename` cannot say: those of moved leaves are as in `like`. Pure.

A rule that moves `blocks/0/w` to `layers/0/w` fits a list, a dict with the key 0 and one with the
key '0': `like` says which of them it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.index import Structure
from cordwood.keypath import DictKey, KeyPath
from cordwood.plan.moved_structure import TreeEnd, items_of, moved_structure
from cordwood.plan.select_leaves import SelectedLeaves


def with_keys_of_like(
    part: SelectedLeaves, structure: Structure, paths: Sequence[KeyPath]
) -> SelectedLeaves:
    """Return the selected leaves; the keys of those that moved have the types that `like` has.

    Args:
        part: the selected leaves, of an index with the naming "exact".
        structure: of `like`.
        paths: of its leaves.
    """
    index = part.stored
    if not part.moved:
        return part
    like_prefixes: dict[tuple[str, ...], KeyPath | None] = {}  # None: several of them
    for item in items_of(structure, paths):
        for stop in range(len(item.path) + 1):
            prefix = item.path[:stop]
            if like_prefixes.setdefault(plain_keys(prefix), prefix) != prefix:
                like_prefixes[plain_keys(prefix)] = None
    items = items_of(index.structure, [leaf.key_path for leaf in index.leaves])
    stored = {item.path for item in items}
    new_paths = []
    for item in items:
        path: KeyPath = ()
        for depth, key in enumerate(item.path):
            typed = like_prefixes.get(plain_keys((*path, key)))
            is_guess = item.path[:depth] in part.moved  # the kind of the container of this key
            path = typed if is_guess and typed is not None else (*path, key)
        new_paths.append(item.path if path in stored else path)
    if new_paths == [item.path for item in items]:
        return part
    return with_items(part, items, new_paths)


def with_items(
    part: SelectedLeaves, items: Sequence[TreeEnd], paths: Sequence[KeyPath]
) -> SelectedLeaves:
    """Return the selected leaves under these paths.

    Args:
        part: the selected leaves.
        items: those of its index that stay.
        paths: their new paths.
    """
    index = part.stored
    result = moved_structure(items, paths)
    leaf_numbers = [items[i].number for i in result.order]
    leaves = [
        index.leaves[number]._replace(key_path=paths[i])
        for i, number in zip(result.order, leaf_numbers, strict=True)
    ]
    return part._replace(
        stored=index._replace(structure=result.structure, leaves=tuple(leaves)),
        numbers=tuple([part.numbers[number] for number in leaf_numbers]),
        moved=result.moved | part.moved,
    )


def plain_keys(path: KeyPath) -> tuple[str, ...]:
    """Return the keys of a path as text, whatever their types are."""
    return tuple([str(key.value) if isinstance(key, DictKey) else str(key) for key in path])
