"""Suggestions of existing names for one that does not exist."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from operator import eq

from cordwood.message_text import counted

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
        shared = len([*takewhile(bool, map(eq, keys, others))])
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

    >>> print(absent_leaf("a", ["a/b", "a/c"], path="run/1").partition("; ")[0])
    run/1: 'a' is a container of 2 leaves: 'a/b', 'a/c'
    >>> print(absent_leaf("x", ["a/b"], path="1"))
    1 has no leaf 'x'; it has 'a/b'; list(checkpoint), or `cordwood ls 1` in a shell, lists all
    """
    container = name.rstrip("/")
    within = [each for each in names if each.startswith(f"{container}/")]
    command = f"cordwood ls {shlex.quote(path)}"
    if within and container:
        command += f" {shlex.quote(container)}"
        count = counted(len(within), "leaf", "leaves")
        what = f"is a container of {count}: {_first(within)}"
        both = f"load(select={container!r}) returns them, `{command}` in a shell lists them"
        return f"{path}: {container!r} {what}; {both}"
    close = nearest_path(name, list(names))
    if close is not None:
        return f"{path} has no leaf {name!r}; did you mean {close!r}?"
    if not names:
        return f"{path} has no leaf {name!r}; it has none at all"
    every = f"list(checkpoint), or `{command}` in a shell, lists all"
    return f"{path} has no leaf {name!r}; it has {_first(names)}; {every}"


def _first(names: Collection[str]) -> str:
    shown = [repr(name) for _, name in zip(range(_SHOWN), names, strict=False)]
    return ", ".join([*shown, *["..."] * (len(names) > _SHOWN)])
