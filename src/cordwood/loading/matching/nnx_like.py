"""A `like` that has modules or states of flax.nnx: which differences of a checkpoint are none.

A module may be stored as jax flattens it, as older versions do: with None, and with tuples and
lists in place of the dicts that its state has.
"""

from __future__ import annotations

import warnings

from cordwood.keypath import KeyPath, format_path
from cordwood.loading.matching.match_names import SEPARATORS
from cordwood.message_text import first_names
from cordwood.plan.keys_of_like import plain_keys, with_items
from cordwood.plan.moved_structure import items_of
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.tree.flatten import FlatTree
from cordwood.tree.nnx_modules import NnxBuilder

_SHOWN = 5


def with_kinds_of_nnx(part: SelectedLeaves, like: FlatTree) -> SelectedLeaves:
    """Return the selected leaves; below modules and states, containers have the kinds of `like`.

    None is left out there.

    Args:
        part: the selected leaves.
        like: the flattened `like`.
    """
    index = part.stored
    if index.naming in SEPARATORS or index.structure == like.structure:
        return part
    places = {plain_keys(path) for path, _ in _nnx_nodes(like)}
    if not places:
        return part
    items = []
    moved = set(part.moved)
    for item in items_of(index.structure, [leaf.key_path for leaf in index.leaves]):
        plain = plain_keys(item.path)
        stops = range(len(plain) + 1)
        top = next((stop for stop in stops if plain[:stop] in places), None)
        if top is not None:
            moved.update([item.path[:stop] for stop in stops[top:]])
        if top is None or item.node.kind != "none":
            items.append(item)
    numbers = part.numbers or tuple(range(len(index.leaves)))
    part = part._replace(numbers=numbers, moved=frozenset(moved))
    return with_items(part, items, [item.path for item in items])


def warn_of_lost_ties(like: FlatTree) -> None:
    """Warn of variables that two modules of `like` share: each loaded module has one of its own.

    The variables that one module has twice stay one.
    """
    modules = [(path, builder) for path, builder in _nnx_nodes(like) if builder.module is not None]
    if len(modules) < 2:
        return
    first: dict[int, tuple[int, str]] = {}  # of each variable: the module, and the path
    pairs = []
    for number, (path, builder) in enumerate(modules):
        for inner, variable in builder.variables():
            name = "/".join([*([format_path(path)] if path else []), *map(str, inner)])
            other, other_name = first.setdefault(id(variable), (number, name))
            if other != number:
                pairs.append(f"{other_name} and {name}")
    if pairs:
        warnings.warn(
            f"two modules of `like` share variables, and the loaded ones do not: "
            f"{first_names(pairs, _SHOWN)}. To keep them shared, save and load nnx.state of all "
            "modules together, and call nnx.update (docs/how-to/flax-nnx.md)",
            stacklevel=2,
        )


def _nnx_nodes(tree: FlatTree) -> list[tuple[KeyPath, NnxBuilder]]:
    """Return the modules and states of flax.nnx in a tree that are not inside of another one."""
    if not any(type(builder) is NnxBuilder for builder in tree.builders):
        return []
    result = []
    stack: list[tuple[KeyPath, bool]] = [((), False)]
    for node, builder in zip(tree.structure, tree.builders, strict=True):
        path, is_inside = stack.pop()
        if type(builder) is NnxBuilder and not is_inside:
            result.append((path, builder))
            is_inside = True
        keys = node.keys or range(node.size)
        stack.extend([((*path, key), is_inside) for key in reversed(keys)])
    return result
