"""Suggestions of existing names for a name that does not exist. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from cordwood.keypath import KeyPath

_MANY = 1000  # names: at most so many are compared with one
_SHOWN = 3  # leaves of a container, or of a checkpoint, that a message names


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names` by difflib; None if none is similar."""
    import difflib  # seldom needed, and slow to import

    close = difflib.get_close_matches(name, list(names), n=1)
    return close[0] if close else None


def nearest_path(name: str, names: Sequence[str]) -> str | None:
    """Return the most similar key path; paths that share more leading keys come first.

    The keys after the shared ones are compared. If there are very many paths, only those with the
    same last key or in the same container are compared.
    """
    container, _, last = name.rpartition("/")
    if len(names) > _MANY:
        beside = [each for each in names if each.rpartition("/")[0] == container]
        names = [*beside, *[each for each in names if each.endswith(f"/{last}")]][:_MANY]
    keys = name.split("/")
    groups: dict[int, dict[str, str]] = {}
    for each in names:
        others = each.split("/")
        shared = next(
            (i for i, (a, b) in enumerate(zip(keys, others, strict=False)) if a != b),
            min(len(keys), len(others)),
        )
        groups.setdefault(shared, {})["/".join(others[shared:])] = each
    for shared in sorted(groups, reverse=True):
        close = nearest_name("/".join(keys[shared:]), groups[shared])
        if close is not None:
            return groups[shared][close]
    return None


def absent_leaf(name: str, names: Collection[str], *, path: str) -> str:
    """Return the message for a key path that is not a leaf of a checkpoint.

    It says if the path is a container, and otherwise suggests leaves.

    Args:
        name: the requested key path.
        names: the key paths of all leaves.
        path: the path of the checkpoint.

    >>> print(absent_leaf("a", ["a/b", "a/c", "d"], path="run/1"))
    run/1: 'a' is a container of 2 leaves: 'a/b', 'a/c'; `cordwood ls run/1 a` lists them
    >>> print(absent_leaf("x", ["a/b", "a/c", "d"], path="run/1"))
    run/1 has no leaf 'x'; it has 'a/b', 'a/c', 'd'; `cordwood ls run/1` lists all
    """
    container = name.rstrip("/")
    within = [each for each in names if each.startswith(f"{container}/")]
    command = f"cordwood ls {shlex.quote(path)}"
    if within and container:
        command += f" {shlex.quote(container)}"
        count = "1 leaf" if len(within) == 1 else f"{len(within)} leaves"
        shown = f"is a container of {count}: {_first(within)}"
        return f"{path}: {container!r} {shown}; `{command}` lists them"
    close = nearest_path(name, list(names))
    if close is not None:
        return f"{path} has no leaf {name!r}; did you mean {close!r}?"
    if not names:
        return f"{path} has no leaf {name!r}; it has none at all"
    return f"{path} has no leaf {name!r}; it has {_first(names)}; `{command}` lists all"


def _first(names: Collection[str]) -> str:
    shown = [repr(name) for _, name in zip(range(_SHOWN), names, strict=False)]
    return ", ".join([*shown, *["..."] * (len(names) > _SHOWN)])


class Nesting(NamedTuple):
    """The place of one tree inside another: one side has a container around the leaves."""

    container: KeyPath
    is_deeper: bool  # True: the stored tree has the container; False: the requested tree

    def stored_path(self, path: KeyPath) -> KeyPath:
        """Return the stored path of a requested leaf."""
        if self.is_deeper:
            return (*self.container, *path)
        return path[len(self.container) :]


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
        counts: dict[Hashable, int] = {}
        containers: dict[Hashable, KeyPath] = {}
        for path in deep:
            for stop in range(1, len(path)):
                if name_of(path[stop:]) in names:
                    container = path[:stop]
                    name = name_of(container)
                    counts[name] = counts.get(name, 0) + 1
                    containers.setdefault(name, container)
        fitting = [containers[name] for name, count in counts.items() if count == len(requested)]
        if fitting:
            return [Nesting(container, is_deeper) for container in sorted(fitting, key=len)]
    return []
