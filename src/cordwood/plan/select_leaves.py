"""Selection of leaves with new names: `select` and `rename`, patterns over key paths. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from cordwood.errors import MismatchError
from cordwood.index import Index, Leaf, Naming
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.message_text import first_lines, text_literal
from cordwood.plan.moved_structure import TreeEnd, items_of, moved_structure, same_path
from cordwood.plan.path_patterns import Select, match_patterns, path_name
from cordwood.plan.rename_paths import Rename, rename_key_paths
from cordwood.plan.transpose_leaves import Transpose, transpose_index

_SHOWN = 20
_MAX_PATTERNS = 5  # in a message


class SelectedLeaves(NamedTuple):
    """Some leaves of an index, as an index of their own."""

    stored: Index
    # The positions of its leaves in the original index. A leaf of several, or that is transposed,
    # has the position of one of them: its storage says what it is made of.
    numbers: tuple[int, ...]
    left_out: frozenset[KeyPath] = frozenset()  # the new paths of leaves that are not selected
    moved: frozenset[KeyPath] = frozenset()  # of `stored`: as in `plan.moved_structure`


def select_leaves(
    index: Index,
    *,
    select: Select | None,
    rename: Rename | None,
    transpose: Transpose | None = None,
    where: str,
) -> SelectedLeaves:
    """Return the selected leaves of an index, with new names and transposed shapes.

    A list or tuple that loses an element becomes a dict of the remaining elements by position;
    the type name of the dict says "list" or "tuple". Its leaves keep their key paths. A container
    that moves with everything in it keeps its kind. Empty containers give way to what moves to
    their place.

    Args:
        index: the index of the checkpoint.
        select: patterns over its key paths (`plan.path_patterns`); None: everything.
        rename: rules for new key paths (`plan.path_patterns`); None: keep the paths.
        transpose: patterns over the new paths; None: no transposition.
        where: the checkpoint's name for errors.

    Raises:
        MismatchError: a pattern or a rule matches nothing, or two leaves get the same path, or
            a leaf cannot be transposed as requested.
    """
    selection = SelectedLeaves(index, tuple(range(len(index.leaves))))
    if select is not None or rename:
        selection = _select_and_rename(index, select=select, rename=rename, where=where)
    if transpose is None:
        return selection
    return selection._replace(stored=transpose_index(selection.stored, transpose, where=where))


def _select_and_rename(
    index: Index, *, select: Select | None, rename: Rename | None, where: str
) -> SelectedLeaves:
    items = items_of(index.structure, [leaf.key_path for leaf in index.leaves])
    paths = [item.path for item in items]
    new_paths: Sequence[Sequence[KeyPath]] = [[path] for path in paths]
    if rename:
        new_paths = rename_key_paths(paths, rename, naming=index.naming, where=where)
    selected = [True] * len(items)
    if select is not None:
        names = [path_name(path, index.naming) for path in paths]
        selected = match_patterns(names, select, naming=index.naming, where=where)
    placed: list[tuple[TreeEnd, KeyPath]] = []
    left_out: set[KeyPath] = set()
    for item, new, is_selected in zip(items, new_paths, selected, strict=True):
        if is_selected:
            placed += [(item, path) for path in new]
        else:
            left_out.update(new)
    if rename:
        placed = _without_empty_in_the_way(placed, index.naming)
        _check_names(placed, index.naming)
    items, paths = [item for item, _ in placed], [path for _, path in placed]
    structure, order, moved = moved_structure(items, paths)
    leaves = [_renamed(index.leaves[items[i].number], paths[i]) for i in order]
    numbers = tuple([items[i].number for i in order])
    stored = index._replace(structure=structure, leaves=tuple(leaves))
    return SelectedLeaves(stored, numbers, frozenset(left_out.difference(paths)), moved=moved)


def _renamed(leaf: Leaf, path: KeyPath) -> Leaf:
    """Return a leaf under a path; it is the same object if that is the path that it has."""
    return leaf if same_path(leaf.key_path, path) else leaf._replace(key_path=path)


def _without_empty_in_the_way(
    placed: Sequence[tuple[TreeEnd, KeyPath]], naming: Naming
) -> list[tuple[TreeEnd, KeyPath]]:
    """Return the items without the empty containers whose place another item takes."""
    above = {path[:stop] for _, path in placed for stop in range(len(path))}
    is_empty = [item.holds_nothing(naming) for item, _ in placed]
    leaves = {path for (_, path), empty in zip(placed, is_empty, strict=True) if not empty}
    moved = {path for item, path in placed if item.number < 0 and path != item.path}
    seen: set[KeyPath] = set()  # of empty containers and None
    result = []
    for (item, path), empty in zip(placed, is_empty, strict=True):
        if item.number < 0:
            is_under_a_leaf = any(path[:stop] in leaves for stop in range(len(path) + 1))
            gives_way = path == item.path and path in moved
            if path in seen or (empty and (path in above or is_under_a_leaf or gives_way)):
                continue
            seen.add(path)
        result.append((item, path))
    return result


def _check_names(placed: Sequence[tuple[TreeEnd, KeyPath]], naming: Naming) -> None:
    """Raise MismatchError if two items have one new path, or one is above another."""
    first: dict[KeyPath, KeyPath] = {}  # the old path of the first item of each new path
    problems: dict[str, KeyPath] = {}  # and the old path of the item that is to be left out
    for item, path in placed:
        new = _split(path, naming)
        other = first.setdefault(new, item.path)
        if other is not item.path:
            names = f"{format_path(other)} and {format_path(item.path)}"
            in_place = _split(other, naming) == new
            problems[f"{names}: {path_label(path)}"] = other if in_place else item.path
    old_paths = {path: item.path for item, path in placed}
    for item, path in placed:
        for stop in range(len(path)):
            above = old_paths.get(path[:stop])
            if above is not None and above is not item.path:
                line = f"{format_path(above)}: {path_label(path[:stop])}, a leaf and above it"
                in_place = above == path[:stop]
                problems[f"{line} {format_path(item.path)}"] = above if in_place else item.path
    if not problems:
        return
    text = f"rename gives one name twice:\n{first_lines(list(problems), _SHOWN)}"
    patterns = _patterns_of(set(problems.values()), [item.path for item, _ in placed])
    if patterns is not None:
        shown = ", ".join([text_literal(f"!{pattern}") for pattern in patterns])
        text += f'\nto leave one of them out, pass for example select=["**", {shown}]'
    raise MismatchError(text)


def _split(path: KeyPath, naming: Naming) -> KeyPath:
    """Return the keys of a path; those that the format joins are split, and are strings."""
    separator = {"dotted": ".", "slashed": "/"}.get(naming)
    if separator is None or not path:
        return path
    return tuple(separator.join(map(str, path)).split(separator))


def _patterns_of(chosen: Collection[KeyPath], paths: Sequence[KeyPath]) -> list[str] | None:
    """Return patterns that match the chosen paths and no other; None for too many of them."""
    others = {path[:1] for path in paths if path not in chosen}
    names = dict.fromkeys(
        format_path(path if path[:1] in others else path[:1]) for path in paths if path in chosen
    )
    return list(names) if len(names) <= _MAX_PATTERNS else None
