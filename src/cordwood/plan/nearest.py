"""The name that somebody may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["nearest", "nearest_path"]

_MANY = 1000  # names to compare with one


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `name`; None where none is (as difflib counts)."""
    import difflib  # which is seldom needed, and takes a while to import

    close = difflib.get_close_matches(name, list(names), n=1)
    return close[0] if close else None


def nearest_path(name: str, names: Sequence[str]) -> str | None:
    """As `nearest`, of key paths: what counts is how they differ behind the keys they share.

    Of very many, only those of the same last key or in the same container are looked at.
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
        close = nearest("/".join(keys[shared:]), groups[shared])
        if close is not None:
            return groups[shared][close]
    return None
