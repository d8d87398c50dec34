"""Pairs of the trees of two checkpoints that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.errors import PrefixError
from cordwood.formats.stored_trees import StoredTrees, listed_trees


class TreePairs(NamedTuple):
    """The trees of two checkpoints that are compared.

    Attributes:
        both: for each pair its name, and the prefix to open on each side; None: the default tree.
        only_a, only_b: the trees of one side only.
        skipped: what is not compared, in words.
    """

    both: Sequence[tuple[str, str | None, str | None]]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()
    skipped: Sequence[str] = ()


def pair_trees(
    a: StoredTrees | None, b: StoredTrees | None, *, prefix: str | None, all_trees: bool
) -> TreePairs:
    """Return which trees of two operands of a comparison belong together.

    Args:
        a: the trees of one operand; None if it is one tree: in memory, or an open checkpoint.
        b: the same for the other one.
        prefix: the tree to compare; of a file it is the only one.
        all_trees: True to compare all trees of the two; otherwise the default one of each.

    Raises PrefixError if one side has no tree of that prefix, or no tree of both has the same name.
    """
    sides = [side for side in (a, b) if side is not None]
    if prefix is not None:
        return TreePairs([(prefix, _prefix_in(a, prefix), _prefix_in(b, prefix))])
    others = dict.fromkeys([text for side in sides for text in side.other_texts()])
    if a is None or b is None or not all_trees:
        names = [side.default() for side in sides]
        skipped = [text for side in sides for text in side.beside(side.default())]
        return TreePairs([(_common(names), None, None)], skipped=list(dict.fromkeys(skipped)))
    if len(a.names) == len(b.names) == 1:
        return TreePairs([(_common([*a.names, *b.names]), None, None)], skipped=list(others))
    both = [(name, _prefix_in(a, name), _prefix_in(b, name)) for name in a.names if name in b.names]
    if not both:
        raise PrefixError(
            f"a holds {listed_trees(a)}, and b holds {listed_trees(b)}: no tree of both has the "
            "same name; name one with prefix= (--prefix), or compare two open checkpoints: "
            "cordwood.open(path, prefix=...)"
        )
    only_a = [name for name in a.names if name not in b.names]
    only_b = [name for name in b.names if name not in a.names]
    return TreePairs(both, only_a, only_b, list(others))


def _prefix_in(side: StoredTrees | None, prefix: str) -> str | None:
    if side is None or not side.format.is_directory:
        return None
    if prefix in side.names:
        return prefix
    raise PrefixError(
        f"there is no tree {prefix!r} in one of the two: it holds {listed_trees(side)}"
    )


def _common(names: Sequence[str | None]) -> str:
    """Return the name of all trees, or "" if they have several names."""
    first = names[0] if names else ""
    return first or "" if all(name == first for name in names) else ""
