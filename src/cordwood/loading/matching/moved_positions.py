"""Advice for elements of a tuple or list whose positions differ from those of `like`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cordwood.index import Leaf, LeafSpec
from cordwood.keypath import KeyPath, format_path

# The leaves in each element, by its position: their shapes and dtypes, by the keys after it.
Elements: TypeAlias = Mapping[int, Mapping[KeyPath, Any]]


def positions_hint(
    absent: Sequence[KeyPath],
    unmatched: Sequence[KeyPath],
    stored: Sequence[Leaf],
    expected: Sequence[LeafSpec],
) -> str:
    """Return the rename= that moves elements to other positions, or a warning; often nothing.

    All stored elements keep their order, and each has the names, shapes and dtypes of its new
    place. A rule is proposed only if there is one way to do so.

    Args:
        absent: the key paths of leaves that only `like` has.
        unmatched: the key paths of leaves that only the checkpoint has.
        stored: all leaves of the checkpoint.
        expected: all leaves of `like`.
    """
    paths = [*absent, *unmatched]
    if not (absent and unmatched):
        return ""
    container = paths[0]
    for path in paths:
        same = [one == other for one, other in zip(container, path, strict=False)]
        container = container[: [*same, False].index(False)]
    stop = len(container)
    sides = [
        {path[stop] if stop < len(path) else "" for path in side} for side in (absent, unmatched)
    ]
    if sides[0] == sides[1] or not all(type(key) is int for key in sides[0] | sides[1]):
        return ""
    outer = format_path(container) if container else "the root"
    elements, places = _elements(stored, stop, container), _elements(expected, stop, container)
    first, last = _matched(elements, places), _matched(elements, places, from_the_end=True)
    if not first or first != last:
        return (
            f"\nelements of {outer} have other positions than in the checkpoint: leaves of one "
            "name may belong to different elements, and to skip some and keep others may load a "
            "mixture; move each element by a rename (docs/how-to/optax.md)"
        )
    pairs = ", ".join(
        f'"{format_path((*container, old))}": "{format_path((*container, new))}"'
        for old, new in first.items()
        if old != new
    )
    keep = ', missing="keep"' if len(first) < len(places) else ""
    return f"\nelements of {outer} have moved: pass rename={{{pairs}}}{keep}"


def _elements(leaves: Sequence[Leaf | LeafSpec], stop: int, container: KeyPath) -> Elements:
    elements: dict[int, dict[KeyPath, Any]] = {}
    for leaf in leaves:
        path = leaf.key_path
        key = path[stop] if path[:stop] == container and stop < len(path) else None
        if isinstance(key, int):
            elements.setdefault(key, {})[path[stop + 1 :]] = leaf.shape, leaf.dtype
    return elements


def _matched(
    elements: Elements, places: Elements, *, from_the_end: bool = False
) -> dict[int, int] | None:
    """Return the first (or last) places, in order, that hold the same as each element."""
    candidates = iter(sorted(places, reverse=from_the_end))
    matched = {}
    for old in sorted(elements, reverse=from_the_end):
        new = next((each for each in candidates if places[each] == elements[old]), None)
        if new is None:
            return None
        matched[old] = new
    return dict(sorted(matched.items()))
