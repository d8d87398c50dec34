"""Subtrees: the container around the leaves that only one of a checkpoint and `like` has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import text_literal

_SHOWN = 3


class Nesting(NamedTuple):
    """The place of one tree inside another: one side has a container around the leaves."""

    container: KeyPath
    is_deeper: bool  # True: the stored tree has the container; False: the requested tree

    def stored_path(self, path: KeyPath) -> KeyPath:
        """Return the stored path of a requested leaf."""
        return (*self.container, *path) if self.is_deeper else path[len(self.container) :]


def find_nestings(
    requested: Sequence[KeyPath], stored: Sequence[KeyPath], name_of: Callable[[KeyPath], Hashable]
) -> list[Nesting]:
    """Return the containers around all requested leaves that only one of the two sides has.

    There are several where the stored tree has several subtrees with the requested names, such as
    parameters and the moments of an optimizer. The container with the shortest path comes first.

    Args:
        requested: the key paths that a load requests.
        stored: the key paths in the checkpoint.
        name_of: returns the name by which a key path is compared.
    """
    for is_deeper, deep, flat in ((True, stored, requested), (False, requested, stored)):
        names = {name_of(path) for path in flat}
        counts: Counter[Hashable] = Counter()
        containers: dict[Hashable, KeyPath] = {}
        for path in deep:
            for stop in range(1, len(path)):
                if name_of(path[stop:]) in names:
                    name = name_of(path[:stop])
                    counts[name] += 1
                    containers.setdefault(name, path[:stop])
        fitting = [containers[name] for name, count in counts.items() if count == len(requested)]
        if fitting:
            return [Nesting(container, is_deeper) for container in sorted(fitting, key=len)]
    return []


def find_parts_of_like(
    like: Sequence[KeyPath], stored: Sequence[KeyPath], name_of: Callable[[KeyPath], Hashable]
) -> list[Nesting]:
    """Return the containers of `like` that hold all leaves of the checkpoint, and perhaps more.

    That with the shortest path comes first: parameters before the moments of an optimizer.
    """
    parts = find_nestings(stored, like, name_of)
    return [part._replace(is_deeper=False) for part in parts if part.is_deeper]


class MovedSubtree(NamedTuple):
    """The place of what one side has in a container, and the other one level or more deeper."""

    container: KeyPath  # that both sides have
    nesting: Nesting  # in it
    needs_keep: bool  # `like` has more leaves there
    needs_ignore: bool  # the checkpoint has more leaves there

    @property
    def hint(self) -> str:
        """The rename= that loads what has moved."""
        outer = format_path(self.container)
        inner = format_path((*self.container, *self.nesting.container))
        if self.nesting.is_deeper:
            text = (
                f"the checkpoint has under {inner} what `like` has under {outer}: pass "
                f"rename={{{text_literal(inner)}: {text_literal(outer)}}}"
            )
        else:
            text = (
                f"the checkpoint has under {outer} what `like` has under {inner}: pass "
                f"rename={{{text_literal(f'{outer}/**')}: {text_literal(f'{inner}/**')}}}"
            )
        text += ', missing="keep"' if self.needs_keep else ""
        return text + (', extra="ignore"' if self.needs_ignore else "")


def find_move(
    absent: Sequence[KeyPath],
    unmatched: Sequence[KeyPath],
    matched: Sequence[KeyPath],
    name_of: Callable[[KeyPath], Hashable],
) -> MovedSubtree | None:
    """Return the one container in which all leaves that differ have moved up or down; or None.

    Args:
        absent: the key paths of leaves that only `like` has.
        unmatched: the key paths of leaves that only the checkpoint has.
        matched: the key paths of leaves that both have.
        name_of: returns the name by which a key path is compared.
    """
    paths = [*absent, *unmatched]
    container = paths[0] if absent and unmatched else ()
    for path in paths:
        same = [one == other for one, other in zip(container, path, strict=False)]
        container = container[: [*same, False].index(False)]
    stop = len(container)
    if not container or any(path[:stop] == container for path in matched):
        return None
    inner_absent = [path[stop:] for path in absent]
    inner_unmatched = [path[stop:] for path in unmatched]
    nestings = find_nestings(inner_absent, inner_unmatched, name_of)
    if not nestings:
        turned = find_nestings(inner_unmatched, inner_absent, name_of)
        nestings = [each._replace(is_deeper=not each.is_deeper) for each in turned]
    if len(nestings) != 1:
        return None
    more = len(absent) - len(unmatched)
    return MovedSubtree(container, nestings[0], needs_keep=more > 0, needs_ignore=more < 0)


def nesting_hint(nestings: Sequence[Nesting], *, needs_keep: bool = False) -> str:
    """Return how to load a tree that is a subtree of the other one, or fits several subtrees.

    With `needs_keep` the tree is that of the checkpoint, and `like` has more leaves.
    """
    nesting = nestings[0]
    name = format_path(nesting.container)
    options = f'select={text_literal(name)}, rename={{{text_literal(name)}: ""}}'
    if nesting.is_deeper and len(nestings) > 1:
        names = joined_names([each.container for each in nestings], "and")
        return (
            f"the checkpoint has all leaves of `like` under each of {names}. Choose one of them "
            f"by select= and rename=, for example: {options}"
        )
    if nesting.is_deeper:
        return f"the checkpoint has all leaves of `like` under {name}: pass {options}"
    rename = f'rename={{"": {text_literal(name)}}}' + ', missing="keep"' * needs_keep
    if len(nestings) > 1:
        names = joined_names([each.container for each in nestings], "and")
        return (
            f"the checkpoint has the leaves that `like` has under each of {names}. Choose one of "
            f"them by rename=, for example: {rename}"
        )
    return f"the checkpoint has the leaves that `like` has under {name}: pass {rename}"


def joined_names(paths: Sequence[KeyPath], conjunction: str) -> str:
    """Return the first names of several as a list in words, and how many more there are.

    >>> joined_names([("a",), ("b",), ("c",)], "and")
    'a, b and c'
    """
    names = [format_path(path) for path in paths[:_SHOWN]]
    if len(paths) > _SHOWN:
        return f"{', '.join(names)} {conjunction} {len(paths) - _SHOWN} more"
    return f" {conjunction} ".join([*[", ".join(names[:-1])] * (len(names) > 1), names[-1]])
